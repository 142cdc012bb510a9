/** For rds-info: the tools show their own nodes. */
import { openControl } from '../../net/index.ts';

/** Opens the control socket of this process; without one the tool works all the same, and rds-info says that there is nothing to see. */
export function showThisProgram(): void {
  try {
    openControl();
  } catch {
    // A folder that is not to be trusted, or none that can be made.
  }
}
