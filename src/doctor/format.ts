/** Sizes as a person reads them. */

/** `64 KiB`, `8 MiB`, `20.5 KiB`; never `8.0 MiB`. */
export function kib(bytes: number): string {
  if (bytes < 1024) return `${bytes} bytes`;
  const [value, unit] = bytes < 1024 * 1024 ? [bytes / 1024, 'KiB'] : [bytes / (1024 * 1024), 'MiB'];
  return `${Number(value.toFixed(1))} ${unit}`;
}
