import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { largestCallBytes, recordsIn } from '../../src/doctor/checks/limits.ts';
import { kib } from '../../src/doctor/format.ts';
import {
  chosen,
  hasCapability,
  hasDevice,
  kilobytes,
  listenersOn,
  packetSockets,
  protocols,
  socketInode,
  tapsSends,
} from '../../src/doctor/proc.ts';

describe('capabilities', () => {
  const status = (mask: string): string =>
    `Name:\tnode\nCapInh:\tffffffffffffffff\nCapEff:\t${mask}\nSeccomp:\t0\n`;

  it('are bits of the effective set', () => {
    assert.equal(hasCapability(status('0000000000001000'), 'CAP_NET_ADMIN'), true);
    assert.equal(hasCapability(status('0000000000001000'), 'CAP_NET_RAW'), false);
    assert.equal(hasCapability(status('000001ffffffffff'), 'CAP_SYS_ADMIN'), true);
    assert.equal(hasCapability(status('0000000000000000'), 'CAP_IPC_LOCK'), false);
  });

  it('are none where the file does not tell', () => {
    assert.equal(hasCapability('', 'CAP_NET_ADMIN'), false);
  });
});

describe('packet sockets', () => {
  const text = `sk               RefCnt Type Proto  Iface R Rmem   User   Inode
0000000000000000 3      3    0003   0     1 0      0      4711
00000000f2a15a01 3      3    0003   7     1 26880  113    4712
00000000f2a15a02 3      2    0800   7     1 0      0      4713
00000000f2a15a03 3      3    0000   7     0 0      0      4714
`;
  const sockets = packetSockets(text);

  it('are read with their columns', () => {
    assert.equal(sockets.length, 4);
    assert.deepEqual(sockets[1], {
      type: 3,
      protocol: 3,
      device: 7,
      running: true,
      user: 113,
      inode: 4712,
    });
  });

  it('tap what is sent only if they take all protocols, on this device or on all', () => {
    assert.deepEqual(
      sockets.filter((socket) => tapsSends(socket, 7)).map(({ inode }) => inode),
      [4711, 4712],
    );
    assert.deepEqual(
      sockets.filter((socket) => tapsSends(socket, 2)).map(({ inode }) => inode),
      [4711],
    );
  });

  it('may be none', () => {
    assert.deepEqual(packetSockets('sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n'), []);
    assert.deepEqual(packetSockets(''), []);
  });
});

describe('listeners', () => {
  const text = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:4001 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 90210 1 0000000000000000 100 0 0 10 0
   1: 0100007F:4001 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 90211 1 0000000000000000 20 4 30 10 -1
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 90212 1 0000000000000000 100 0 0 10 0
`;

  it('are those in state LISTEN on the port', () => {
    assert.deepEqual(listenersOn(text, 0x4001), [{ address: '0100007F', user: 1000, inode: 90210 }]);
    assert.deepEqual(listenersOn(text, 80), []);
  });

  it('are read from the longer lines of IPv6, too', () => {
    const line =
      '   0: 00000000000000000000000000000000:4001 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0000000000000000 100 0 0 10 0';
    assert.deepEqual(listenersOn(`heading\n${line}\n`, 0x4001), [
      { address: '0'.repeat(32), user: 0, inode: 77 },
    ]);
  });
});

describe('other files', () => {
  it('protocols are the first column', () => {
    const text =
      'protocol  size sockets\nAF_VSOCK  1240      0      -1   NI\nTCP       2304      1     192   no\n';
    assert.deepEqual(protocols(text), ['AF_VSOCK', 'TCP']);
  });

  it('devices are lines of a number and a name', () => {
    const text = 'Character devices:\n  1 mem\n246 macvtap\n200 tunnel\n';
    assert.equal(hasDevice(text, 'macvtap'), true);
    assert.equal(hasDevice(text, 'tun'), false);
  });

  it('a choice is in brackets', () => {
    assert.equal(chosen('always [madvise] never\n'), 'madvise');
    assert.equal(chosen('always madvise never\n'), undefined);
  });

  it('kilobytes are bytes', () => {
    const text = 'Rss:              118784 kB\nAnonHugePages:      8192 kB\n';
    assert.equal(kilobytes(text, 'AnonHugePages'), 8 * 1024 * 1024);
    assert.equal(kilobytes(text, 'Pss'), undefined);
  });

  it('links of descriptors name sockets by inode', () => {
    assert.equal(socketInode('socket:[4711]'), 4711);
    assert.equal(socketInode('/dev/null'), undefined);
    assert.equal(socketInode('pipe:[4711]'), undefined);
  });
});

describe('limits', () => {
  it('a call is charged two pages more than it has', () => {
    assert.equal(largestCallBytes(64 * 1024, 4096), 57_344);
    assert.equal(largestCallBytes(8192, 4096), 0);
    assert.equal(largestCallBytes(0, 4096), 0);
  });

  it('no more is tried than the library lends in one call', () => {
    assert.equal(largestCallBytes(8 * 1024 * 1024, 4096), 512 * 1024);
    assert.equal(largestCallBytes(-1, 4096), 512 * 1024);
  });

  it('records of 20 KiB are 24, as in kernels before 6.8', () => {
    assert.equal(recordsIn(20_480), 24);
    assert.equal(recordsIn(512), 0);
  });

  it('sizes are in the largest unit', () => {
    assert.deepEqual([512, 1024, 57_344, 20_992, 8 * 1024 * 1024].map(kib), [
      '512 bytes',
      '1 KiB',
      '56 KiB',
      '20.5 KiB',
      '8 MiB',
    ]);
  });
});
