/** What the findings say together. */
import type { Finding } from './finding.ts';

const FAMILY = 'zerocopy.';

/**
 * Whether memory can be lent here: false if the addon is not there, or none of the kinds of socket that were tried works;
 * null if none was tried. Checks that were left out, or had nothing to try, count neither way.
 */
export function zerocopyIsPossible(findings: readonly Finding[]): boolean | null {
  if (findings.some(({ data }) => data?.code === 'ZTX_NO_ADDON')) return false;
  const tried = findings.filter(
    ({ id, status }) => id.startsWith(FAMILY) && id !== `${FAMILY}unix` && status !== 'skip',
  );
  return tried.length === 0 ? null : tried.some(({ status }) => status !== 'fail');
}
