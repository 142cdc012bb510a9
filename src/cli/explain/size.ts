/** Byte counts as all of `zerotx explain` writes them. */

const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

/** `32 KiB`, `21 MiB`, `20.5 KiB`, `293 KiB`: three digits at most, and no `.0`. */
export function size(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 100 ? Number(value.toFixed(1)) : Math.round(value)} ${units[unit]}`;
}
