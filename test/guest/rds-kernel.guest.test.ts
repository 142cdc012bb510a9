/**
 * zerotx against a Linux kernel's own RDS (rds_tcp), which runs in a guest. This file only makes the surroundings; the tests
 * are in rds-kernel.ts. With ZEROTX_GUEST=required it fails where it would be skipped.
 */
import { test } from 'node:test';
import { guestKernel, missingPrograms } from './kernel.ts';
import { inNamespace, namespaceObstacle, runInNamespace } from './namespace.ts';

/** Why there can be no guest here; null if there can. What has to be fetched is fetched now: inside there is no way out. */
async function obstacle(): Promise<string | null> {
  const missing = namespaceObstacle() ?? (await missingPrograms());
  if (missing !== null) return missing;
  return guestKernel().then(
    () => null,
    (error: Error) => `no kernel for the guest: ${error.message}`,
  );
}

const reason = inNamespace ? null : await obstacle();
if (inNamespace) await import('./rds-kernel.ts');
else if (reason === null) process.exitCode = await runInNamespace(import.meta.url);
else if (process.env.ZEROTX_GUEST === 'required') throw new Error(reason);
else test('RDS with a Linux kernel', { skip: reason }, () => console.log(`skipped: ${reason}`));
