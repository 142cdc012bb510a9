/** What the addon asks of the system it is loaded on, as a prebuilt binary must run on systems older than its builder's. */
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { describe, it } from 'node:test';
import { readElf } from '../support/elf.ts';
import { ROOT } from '../support/sources.ts';

/** The C library that Node 20's own Linux binaries need: who runs Node has it. */
const GLIBC_FLOOR = [2, 28] as const;

const override = process.env.ZEROTX_ADDON;
const file: string = override ?? createRequire(import.meta.url)('node-gyp-build').path(ROOT);
const skip =
  override === undefined ? false : 'another build of the addon is under test, such as one with sanitizers';

describe('the addon', { skip }, () => {
  const { needed, wanted } = readElf(file);

  it('links to the C library alone', () => {
    assert.deepEqual(
      needed.filter((name) => !/^(?:libc\.so\.6|ld-linux-[\w-]+\.so\.\d)$/.test(name)),
      [],
    );
  });

  it('wants Node-API and libuv of Node, and nothing else that has no version', () => {
    const foreign = wanted.filter(
      ({ name, version, weak }) => version === undefined && !weak && !/^(?:napi|uv)_/.test(name),
    );
    assert.deepEqual(foreign, []);
    assert.ok(wanted.some(({ name }) => name === 'napi_create_function'));
  });

  it('uses only what every version of libuv has: polls, handles, and threads', () => {
    const uv = wanted.map(({ name }) => name).filter((name) => name.startsWith('uv_'));
    assert.deepEqual(
      uv.filter(
        (name) =>
          !/^uv_(?:poll_\w+|close|ref|unref|thread_create|mutex_\w+|cond_\w+|once|hrtime)$/.test(name),
      ),
      [],
    );
  });

  it(`wants no symbol newer than glibc ${GLIBC_FLOOR.join('.')}`, () => {
    const versioned = wanted.filter(({ version }) => version !== undefined);
    assert.ok(versioned.length > 10);
    const newer = versioned.filter(({ version = '' }) => {
      const [, major, minor] = /^GLIBC_(\d+)\.(\d+)/.exec(version) ?? [];
      assert.ok(major !== undefined, `${version} is not of the C library`);
      return (
        Number(major) > GLIBC_FLOOR[0] || (Number(major) === GLIBC_FLOOR[0] && Number(minor) > GLIBC_FLOOR[1])
      );
    });
    assert.deepEqual(newer, []);
  });
});
