/** All checks in the order in which they run and are shown: what everything needs comes first. */
import { ZerotxError } from '../core/errors.ts';
import { deviceChecks } from './checks/device.ts';
import { familyChecks } from './checks/families.ts';
import { limitChecks } from './checks/limits.ts';
import { rdsChecks } from './checks/rds.ts';
import { rightChecks } from './checks/rights.ts';
import { addonCheck, systemChecks } from './checks/system.ts';
import { udpChecks } from './checks/udp.ts';
import type { Check } from './finding.ts';

export const catalogue: readonly Check[] = [
  addonCheck,
  ...familyChecks,
  ...limitChecks,
  ...udpChecks,
  ...deviceChecks,
  ...systemChecks,
  ...rightChecks,
  ...rdsChecks,
];

/** Those with an id or a group in `only`; all without it. Throws EINVAL on a name that is neither. */
export function select(
  only: readonly string[] | undefined,
  checks: readonly Check[] = catalogue,
): readonly Check[] {
  if (only === undefined) return checks;
  const named = (id: string, name: string): boolean => id === name || id.startsWith(`${name}.`);
  for (const name of only) {
    if (!checks.some(({ id }) => named(id, name)))
      throw new ZerotxError('EINVAL', `no check is called ${JSON.stringify(name)}`);
  }
  return checks.filter(({ id }) => only.some((name) => named(id, name)));
}
