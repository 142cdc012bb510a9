/** `zerotx`: what all doors share. See `zerotx/rds` for reliable datagrams. */
export { type Next, ZerotxError } from './core/errors.ts';
export { type Outcome, Ubuf } from './core/ubuf.ts';
