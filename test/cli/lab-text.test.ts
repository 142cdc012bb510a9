/** What `zerotx vhost` and `zerotx switch` print: counters, events, and commands to copy. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { bytesText, counterDocument, counterLines, type PortRow } from '../../src/cli/lab/counters.ts';
import { eventText } from '../../src/cli/lab/events.ts';
import { type Card, guestCommand, guestNotes, stableMac } from '../../src/cli/lab/qemu.ts';
import { portCounters } from '../../src/core/port.ts';

const row = (port: string, numbers: Partial<ReturnType<typeof portCounters>>): PortRow => ({
  port,
  kind: 'tap',
  up: true,
  counters: { ...portCounters(), ...numbers },
  rxLost: {},
  txLost: {},
});

describe('counters', () => {
  it('are a table, with what became of frames that were lost', () => {
    const busy = {
      ...row('vm1', { rxFrames: 1234567, rxBytes: 98e9, rxErrors: 1, txDropped: 2, txErrors: 3 }),
      rxLost: { spoofed: 4, badOffload: 5, vlan: 0 },
      txLost: { full: 6 },
    };
    const lent = row('a long name', {
      txFrames: 10,
      txBytes: 20_000,
      txLentBytes: 16_000,
      txKernelCopiedBytes: 4000,
    });
    assert.deepEqual(counterLines([busy, { ...lent, up: false }]), [
      '                     from the port             to the port',
      'port         link     frames    bytes  lost    frames    bytes  lost     lent  copied',
      'vm1          up      1234567  98.0 GB    10         0      0 B    11      0 B       -',
      'a long name  down          0      0 B     0        10  20.0 kB     0  16.0 kB    25 %',
      'lost from vm1: 1 unreadable, 4 spoofed, 5 bad offload',
      'lost to vm1: 2 not sent, 3 refused, 6 full',
    ]);
  });

  it('are a document', () => {
    const { vm1 } = counterDocument([{ ...row('vm1', { rxFrames: 1 }), more: { lentNow: 2 } }]);
    assert.deepEqual(vm1, {
      ...{ kind: 'tap', up: true },
      ...portCounters(),
      ...{ rxFrames: 1, rxLost: {}, txLost: {}, lentNow: 2 },
    });
  });

  it('have bytes that one can read', () => {
    const texts = [0, 9999, 10_000, 99_499, 99_500, 123_456, 9_999_000, 9_999_500, 1e12, 1e21].map(bytesText);
    assert.deepEqual(texts, [
      ...[
        '0 B',
        '9999 B',
        '10.0 kB',
        '99.5 kB',
        '100 kB',
        '123 kB',
        '9999 kB',
        '10.0 MB',
        '1000 GB',
        '1000 EB',
      ],
    ]);
  });

  it('show no commands to the terminal', () => {
    assert.ok(
      !counterLines([row('a\u001b[2Jb', {})])
        .join('')
        .includes('\u001b'),
    );
    assert.equal(eventText({ event: 'lost', port: 'a\u001bb', reason: 'x\ny' }), 'a b: lost: x y');
  });
});

describe('events', () => {
  it('are a line each', () => {
    const port = 'vm1';
    for (const [event, text] of [
      [{ event: 'socket', port, state: 'listening', path: '/s' }, 'vm1: waits for a front-end at /s'],
      [{ event: 'socket', port, state: 'waiting', path: '/s' }, 'vm1: looks for a front-end at /s'],
      [{ event: 'socket', port, state: 'connected', path: '/s' }, 'vm1: a front-end is connected'],
      [{ event: 'link', port, up: true }, 'vm1: up'],
      [{ event: 'link', port, up: false }, 'vm1: down'],
      [{ event: 'ring', port, ring: 1, reason: 'loop' }, 'vm1: ring 1 is broken and stands still: loop'],
      [
        { event: 'link', port, up: false, reason: 'ECONNREFUSED' },
        'vm1: not connected: ECONNREFUSED, tries again',
      ],
      [{ event: 'link', port, up: false, waitsAt: '[::]:9' }, 'vm1: waits for its peer at [::]:9'],
      [{ event: 'left', port }, 'vm1: its front-end has left'],
      [{ event: 'disconnect', port, reason: 'why' }, 'vm1: the front-end was disconnected: why'],
      [{ event: 'lost', port, reason: 'why' }, 'vm1: lost: why'],
      [{ event: 'capture', port, reason: 'why' }, 'vm1: its capture ends: why'],
      [{ event: 'note', text: 'closing' }, 'closing'],
    ] as const) {
      assert.equal(eventText(event), text);
    }
  });
});

describe('commands for guests', () => {
  const card: Card = {
    name: 'vm1',
    socket: '/run/vm1.sock',
    role: 'listen',
    frontend: 'qemu',
    queues: 1,
    mtu: 1500,
    mac: '52:54:00:00:00:01',
  };

  it('say no more than they have to', () => {
    assert.deepEqual(guestCommand(card, true), [
      'qemu-system-x86_64 -accel kvm -m 1G \\',
      '  -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem \\',
      '  -chardev socket,id=vm1,path=/run/vm1.sock,reconnect=1 \\',
      '  -netdev vhost-user,id=vm1-net,chardev=vm1 \\',
      '  -device virtio-net-pci,netdev=vm1-net,mac=52:54:00:00:00:01,rx_queue_size=1024,tx_queue_size=1024',
    ]);
  });

  it('have queues, an MTU, and who waits', () => {
    const [command, , chardev, netdev, device] = guestCommand(
      { ...card, queues: 2, mtu: 9000, role: 'connect' },
      true,
    );
    assert.match(command ?? '', / -smp 2 /);
    assert.match(chardev ?? '', /,server=on,wait=off \\$/);
    assert.match(netdev ?? '', /,queues=2 \\$/);
    assert.match(device ?? '', /,mq=on,host_mtu=9000,/);
    assert.ok(
      !guestNotes([{ ...card, role: 'connect' }], true)
        .join()
        .includes('reconnect'),
    );
  });

  it('do without KVM where there is none', () => {
    const command = guestCommand(card, false);
    assert.match(command[0] ?? '', / -accel tcg /);
    assert.match(command.at(-1) ?? '', /,vectors=0,/);
    assert.match(guestNotes([card], false).join('\n'), /may not use \/dev\/kvm/);
    assert.ok(!guestNotes([card], true).join('\n').includes('/dev/kvm'));
  });

  it('take any path and any name', () => {
    const [, , chardev, netdev] = guestCommand({ ...card, name: '1 é', socket: "/run/it's, a.sock" }, true);
    assert.equal(chardev, "  -chardev 'socket,id=n1--,path=/run/it'\\''s,, a.sock,reconnect=1' \\");
    assert.equal(netdev, '  -netdev vhost-user,id=n1---net,chardev=n1-- \\');
  });

  it('are short for User-Mode Linux', () => {
    assert.deepEqual(guestCommand({ ...card, frontend: 'uml' }, true), [
      'linux mem=512M virtio_uml.device=/run/vm1.sock:1',
    ]);
    assert.deepEqual(guestNotes([{ ...card, frontend: 'uml' }], true), []);
  });

  it('have an address that stays, and is another for another socket', () => {
    assert.match(stableMac('/a'), /^52:54:00(:[0-9a-f]{2}){3}$/);
    assert.equal(stableMac('/a'), stableMac('/a'));
    assert.notEqual(stableMac('/a'), stableMac('/b'));
  });
});
