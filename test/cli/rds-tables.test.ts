/** The layout of rds-info: titles, columns and widths of rds-tools 2.0.7. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { counterLines, listLines } from '../../src/cli/rds/tables.ts';
import type { ConnectionInfo } from '../../src/rds/info.ts';

const connection: ConnectionInfo = {
  localAddress: '192.0.2.1',
  remoteAddress: '192.0.2.2',
  lane: 0,
  transport: 'tcp',
  nextTx: 17n,
  nextRx: 2n ** 63n,
  sending: true,
  connecting: false,
  connected: true,
  npaths: 8,
  peerGeneration: 0xbeef,
};

const message = {
  sequence: 5n,
  bytes: 1048576,
  localAddress: '192.0.2.1',
  localPort: 4000,
  remoteAddress: '192.0.2.2',
  remotePort: 65535,
};

describe('the tables of rds-info', () => {
  const cases: [name: string, lines: string[], expected: string[]][] = [
    [
      'counters',
      counterLines({ conn_reset: 3, cong_update_received: 12345678901 }),
      [
        '',
        'Counters:',
        '              CounterName            Value',
        '               conn_reset                3',
        '     cong_update_received      12345678901',
      ],
    ],
    [
      'connections',
      listLines('connections', [connection, { ...connection, lane: 1 }], false),
      [
        '',
        'RDS Connections:',
        '      LocalAddr      RemoteAddr  Tos           NextTX              NextRX Flgs',
        '      192.0.2.1       192.0.2.2    0               17 9223372036854775808 s-C-',
      ],
    ],
    [
      'all lanes of connections',
      listLines('connections', [{ ...connection, lane: 1, connecting: true, connected: false }], true),
      [
        '',
        'RDS Connections:',
        '      LocalAddr      RemoteAddr  Tos           NextTX              NextRX Flgs Lane NPaths  PeerGen',
        '      192.0.2.1       192.0.2.2    0               17 9223372036854775808 sc--    1      8 0000beef',
      ],
    ],
    [
      'sockets, one of them connected',
      listLines(
        'sockets',
        [
          {
            ...{ address: '192.0.2.1', port: 4000, peerAddress: '', peerPort: 0 },
            ...{ sendBufferBytes: 106496, receiveBufferBytes: 8388608, inode: 0 },
          },
        ],
        false,
      ),
      [
        '',
        'RDS Sockets:',
        '      BoundAddr BPort        ConnAddr CPort     SndBuf     RcvBuf    Inode',
        '      192.0.2.1  4000         0.0.0.0     0     106496    8388608        0',
      ],
    ],
    [
      'a queue, with addresses that need more room',
      listLines('sendQueue', [{ ...message, localAddress: '2001:db8::1234:5678' }], false),
      [
        '',
        'Send Message Queue:',
        '          LocalAddr LPort      RemoteAddr RPort  Tos              Seq      Bytes',
        '2001:db8::1234:5678  4000       192.0.2.2 65535    0                5    1048576',
      ],
    ],
    [
      'an empty queue',
      listLines('receiveQueue', [], false),
      [
        '',
        'Receive Message Queue:',
        '      LocalAddr LPort      RemoteAddr RPort  Tos              Seq      Bytes',
      ],
    ],
    [
      'TCP connections',
      listLines(
        'tcpSockets',
        [
          {
            ...{ localAddress: '192.0.2.1', localPort: 32776, remoteAddress: '192.0.2.2', remotePort: 16385 },
            ...{ headerBytesLeft: 48, dataBytesLeft: 0 },
            ...{ lastSentNext: 4294967295, lastExpectedUna: 47, lastSeenUna: 4294967295 },
          },
        ],
        false,
      ),
      [
        '',
        'TCP Connections:',
        '      LocalAddr LPort      RemoteAddr RPort  HdrRemain DataRemain    SentNxt  ExpectUna    SeenUna',
        '      192.0.2.1 32776       192.0.2.2 16385         48          0 4294967295         47 4294967295',
      ],
    ],
  ];
  for (const [name, lines, expected] of cases) {
    it(`show ${name}`, () => assert.deepEqual(lines, expected));
  }

  it('have no control characters of a stranger in them', () => {
    const [, , , row = ''] = listLines('sendQueue', [{ ...message, localAddress: 'a\u001b[2Jb' }], false);
    assert.equal(row.includes('\u001b'), false);
  });
});
