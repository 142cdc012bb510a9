/**
 * What a file of guest tests consists of: it looks whether there can be guests here, fetches what they need, and runs itself
 * again in namespaces of its own, where its tests are. With ZEROTX_GUEST=required, as in continuous integration, it fails where
 * it would be skipped, and says why.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { initramfs } from './initramfs.ts';
import { guestKernel, missingPrograms } from './kernel.ts';
import { inNamespace, namespaceObstacle, runInNamespace } from './namespace.ts';

const isRequired = process.env.ZEROTX_GUEST === 'required';
/** A mirror may be away, or change between the list of its packages and the package. Where tests may be skipped, that is one. */
const ATTEMPTS = isRequired ? 2 : 1;

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
  else if (isRequired) test(name, () => assert.fail(`no guest, and ZEROTX_GUEST=required: ${reason}`));
  else test(name, { skip: reason }, () => console.log(`skipped: ${reason}`));
}

/** Why there can be no guest here; null if there can. */
async function obstacle(prepare: () => Promise<unknown>): Promise<string | null> {
  const missing = namespaceObstacle() ?? (await missingPrograms());
  if (missing !== null) return missing;
  let reason = '';
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    try {
      await initramfs(await guestKernel());
      await prepare();
      return null;
    } catch (error) {
      reason = (error as Error).message;
      console.log(`attempt ${attempt} of ${ATTEMPTS} to get what guests need: ${reason}`);
    }
  }
  return reason;
}
