/**
 * What this host can do for lent memory, found out by doing: every check makes the call that a program would make, on
 * loopback, and looks at what the kernel answers.
 *
 *   import { doctor, features } from 'zerotx';
 *   for await (const { id, status, found, remedy } of doctor({ to: 'storage.example' })) console.log(id, status, found, remedy);
 *   const { zerocopy } = await features();
 *
 * Exported by the package's main door and used by `zerotx doctor`. Importing it loads no addon; running it does. Nothing
 * stays behind: no module is loaded, no device made, no setting changed.
 */
import { catalogue } from './catalogue.ts';

export { type Features, features } from './features.ts';
export type { Finding, Status } from './finding.ts';
export { type DoctorOptions, doctor } from './run.ts';
export { measureSendCosts, type SendCosts } from './send-costs.ts';
export { zerocopyIsPossible } from './verdict.ts';

/** Ids and titles of all checks, in their order. */
export const doctorChecks: readonly { readonly id: string; readonly title: string }[] = catalogue.map(
  ({ id, title }) => ({ id, title }),
);
