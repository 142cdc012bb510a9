/** A name that is no option is refused: one that is passed over may be the one that says who may connect. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { RdsNode } from '../../src/rds/index.ts';

describe('names of options', () => {
  const wrong: [what: string, options: object][] = [
    ['of a node', { address: '127.43.1.1', alow: ['192.0.2.0/24'] }],
    ['of its limits', { address: '127.43.1.1', limits: { peer: 5 } }],
    ['of a node of the kernel', { transport: 'kernel', address: '127.43.1.1', zeroCopy: true }],
  ];
  for (const [what, options] of wrong) {
    it(`${what}`, async () => {
      await assert.rejects(RdsNode.open(options as never), {
        name: 'TypeError',
        code: 'ERR_INVALID_ARG_VALUE',
        message: /has no property "(?:alow|peer|zeroCopy)"/,
      });
    });
  }

  it('of a socket', async () => {
    const node = await RdsNode.open({ address: '127.43.1.1' });
    assert.throws(() => node.bind(4000, { zeroCopy: true } as never), {
      code: 'ERR_INVALID_ARG_VALUE',
      message: /"zeroCopy".*zerocopy, pin/,
    });
    await node.close();
  });
});
