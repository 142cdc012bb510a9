/** `zerotx`: what all doors share. See `zerotx/rds` for reliable datagrams. */
export { type Next, ZerotxError } from './core/errors.ts';
export type { Outcome } from './core/ubuf.ts';
export {
  type DoctorOptions,
  doctor,
  doctorChecks,
  type Features,
  type Finding,
  features,
  measureSendCosts,
  type SendCosts,
  type Status,
  zerocopyIsPossible,
} from './doctor/index.ts';
