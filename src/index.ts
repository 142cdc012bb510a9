/** `zerotx`: what all doors share. See `zerotx/rds` for reliable datagrams. */
export { type Next, ZerotxError } from './core/errors.ts';
export type { Outcome } from './core/ubuf.ts';
