/** Which memory may be lent, for layers that do not know the addon. See sys/lend.ts for the rule. */
import { native } from '../sys/binding.ts';

export { canLend, lend } from '../sys/lend.ts';

export function pageBytes(): number {
  return native().pageSize();
}
