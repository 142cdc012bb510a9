/**
 * What a file of guest tests consists of: it looks whether there can be guests here, fetches what they need, and runs itself
 * again in namespaces of its own, where its tests are. With ZEROTX_GUEST=required it fails where it would be skipped.
 */
import { test } from 'node:test';
import { initramfs } from './initramfs.ts';
import { guestKernel, missingPrograms } from './kernel.ts';
import { inNamespace, namespaceObstacle, runInNamespace } from './namespace.ts';

/** `prepare` fetches what these tests need besides; inside there is no way out. */
export async function guestTests(
  name: string,
  url: string,
  tests: () => Promise<unknown>,
  prepare: () => Promise<unknown> = async () => {},
): Promise<void> {
  if (inNamespace) {
    await tests();
    return;
  }
  const reason = await obstacle(prepare);
  if (reason === null) process.exitCode = await runInNamespace(url);
  else if (process.env.ZEROTX_GUEST === 'required') throw new Error(reason);
  else test(name, { skip: reason }, () => console.log(`skipped: ${reason}`));
}

/** Why there can be no guest here; null if there can. */
async function obstacle(prepare: () => Promise<unknown>): Promise<string | null> {
  const missing = namespaceObstacle() ?? (await missingPrograms());
  if (missing !== null) return missing;
  try {
    await initramfs(await guestKernel());
    await prepare();
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}
