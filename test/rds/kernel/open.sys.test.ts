/** Opening the kernel's RDS where it is not loaded, and options that it does not have. What it does is tested in a guest. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ZerotxError } from '../../../src/core/errors.ts';
import type { KernelNodeOptions, RdsNodeApi, RdsSocketApi } from '../../../src/rds/api.ts';
import type { KernelRdsNode } from '../../../src/rds/kernel/node.ts';
import { KernelRdsSocket } from '../../../src/rds/kernel/socket.ts';
import { RdsNode } from '../../../src/rds/node.ts';
import { RdsSocket } from '../../../src/rds/socket.ts';
import { native } from '../../../src/sys/binding.ts';
import { AF_RDS, SOCK_SEQPACKET } from '../../../src/sys/constants.ts';

const isLoaded = ((): boolean => {
  const fd = native().socket(AF_RDS, SOCK_SEQPACKET, 0);
  if (fd >= 0) native().close(fd);
  return fd >= 0;
})();

function opening(options: Partial<Record<string, unknown>>): Promise<unknown> {
  return RdsNode.open({ transport: 'kernel', address: '127.0.0.1', ...options } as KernelNodeOptions);
}

describe('the kernel transport', () => {
  it('says what is missing where the kernel has no RDS', { skip: isLoaded }, async () => {
    await assert.rejects(opening({}), (error) => {
      assert.ok(error instanceof ZerotxError);
      assert.ok(['EAFNOSUPPORT', 'ESOCKTNOSUPPORT'].includes(error.code), error.code);
      assert.match(error.message, /modprobe rds_tcp/);
      assert.match(error.message, /transport: 'tcp'/);
      return true;
    });
  });

  it('refuses what is an option of the other one', async () => {
    const others = { allow: [], keys: [], mode: 'auto', thresholdBytes: 1, lanes: 1 };
    for (const [name, value] of Object.entries(others)) {
      await assert.rejects(
        opening({ [name]: value }),
        (error) => error instanceof ZerotxError && error.code === 'EINVAL' && error.message.includes(name),
      );
    }
  });

  it('wants an address of one host, and right limits', async () => {
    for (const address of ['', '0.0.0.0', '224.0.0.1', 'fe80::1', 'localhost']) {
      await assert.rejects(
        opening({ address }),
        (error) => error instanceof ZerotxError && error.code === 'EINVAL',
        address,
      );
    }
    await assert.rejects(opening({ limits: { idlePoolBytes: 0 } }), RangeError);
    await assert.rejects(opening({ address: 7 }), TypeError);
    await assert.rejects(RdsNode.open({ transport: 'udp' } as never), RangeError);
  });

  it('has the types of both', () => {
    const nodes: ((node: RdsNode | KernelRdsNode) => RdsNodeApi)[] = [(node) => node];
    const sockets: ((socket: RdsSocket | KernelRdsSocket) => RdsSocketApi)[] = [(socket) => socket];
    assert.equal(nodes.length + sockets.length, 2);
    // What the types promise, the classes have.
    const accessors: (keyof RdsSocketApi & string)[] = [
      ...(['address', 'zerocopy', 'closed', 'readable', 'writable', 'sendBufferBytes'] as const),
      ...(['receiveBufferBytes', 'queuedBytes', 'unreadBytes', 'lentBytes', 'remote'] as const),
    ];
    for (const { prototype } of [RdsSocket, KernelRdsSocket])
      for (const name of accessors) assert.ok(Object.getOwnPropertyDescriptor(prototype, name)?.get, name);
  });
});
