/** Counts of listed cases: scaled down for every day, in full under `npm run soak`. */
export const SOAK: boolean = process.env.ZEROTX_SOAK === '1';

export function scaled(everyDay: number, full: number): number {
  return SOAK ? full : everyDay;
}
