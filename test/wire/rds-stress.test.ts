import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import * as rds from '../../src/wire/rds.ts';
import * as stress from '../../src/wire/rds-stress.ts';
import * as control from '../../src/wire/rds-stress-options.ts';
import { readConnections } from '../support/pcap.ts';
import { splitMessages, type WireMessage } from '../support/rds-messages.ts';
import { readVector } from '../support/vectors.ts';

describe('verification pattern', () => {
  test('begins as rds-stress computes it', () => {
    const pattern = stress.verifyPattern();
    assert.equal(pattern.length, 1_048_576);
    const at = (from: number, to: number): string => Buffer.from(pattern.subarray(from, to)).toString('hex');
    assert.equal(at(0, 16), '0b3e694ca73ac508c3b6a1445fb2fd00');
    assert.equal(at(250, 266), '3154efc28d100c682440bc98d4706cc8');
    assert.equal(stress.verifyPattern(), pattern);
  });

  test('fills a message from byte 63 on, to its end and no further', () => {
    const out = new Uint8Array(70);
    stress.fillPattern(out, 2, 66);
    assert.deepEqual(out.slice(62), Uint8Array.of(0, 0, 0, 0x0b, 0x3e, 0x69, 0, 0));
    assert.equal(stress.checkPattern(out, 2, 66), -1);
    assert.equal(stress.checkPattern(out, 2, 67), 66);
    assert.equal(stress.checkPattern(out, 2, stress.STRESS_HEADER_BYTES), -1);
  });
});

describe('message header', () => {
  const sent: stress.StressHeader = {
    seq: 0x80000001,
    fromAddr: 0x0a4d0001,
    toAddr: 0xfe4d0002,
    fromPort: 4001,
    toPort: 65000,
    index: 513,
    op: stress.OP_ACK,
  };

  test('layout', () => {
    const out = new Uint8Array(stress.STRESS_HEADER_BYTES).fill(0xee);
    stress.encodeStressHeader(out, 0, sent);
    assert.equal(
      Buffer.from(out).toString('hex'),
      `800000010a4d0001fe4d00020fa1fde8020102${'00'.repeat(44)}`,
    );
  });

  const differences: [change: Partial<stress.StressHeader>, words: string][] = [
    [{ seq: 7 }, 'seq is 2147483649, expected 7'],
    [{ fromAddr: 0x7f000001 }, 'from_addr is 10.77.0.1, expected 127.0.0.1'],
    [{ toAddr: 0x7f000001 }, 'to_addr is 254.77.0.2, expected 127.0.0.1'],
    [{ fromPort: 4002 }, 'from_port is 4001, expected 4002'],
    [{ toPort: 4002 }, 'to_port is 65000, expected 4002'],
    [{ index: 0 }, 'index is 513, expected 0'],
    [{ op: stress.OP_REQ }, 'op is 2, expected 1'],
    [{ seq: 7, op: stress.OP_REQ }, 'seq is 2147483649, expected 7'],
  ];
  for (const [change, words] of differences) {
    test(words, () => {
      const out = new Uint8Array(stress.STRESS_HEADER_BYTES);
      stress.encodeStressHeader(out, 0, sent);
      assert.equal(stress.checkStressHeader(out, 0, { ...sent, ...change }), words);
    });
  }

  test('only a marked message with a passed number is an old retry', () => {
    const out = new Uint8Array(stress.STRESS_HEADER_BYTES);
    stress.encodeStressHeader(out, 0, { ...sent, seq: 5 });
    assert.equal(stress.isOldRetry(out, 0, 6), false);
    out[60] = 1;
    assert.equal(stress.isOldRetry(out, 0, 6), true);
    assert.equal(stress.isOldRetry(out, 0, 5), false);
  });
});

describe('options', () => {
  test('defaults in the plain form', () => {
    const bytes = control.encodeOptions({
      ...control.defaultOptions,
      sendAddr: 0x0a4d0002,
      receiveAddr: 0x0a4d0001,
      runTime: 10,
    });
    assert.equal(
      Buffer.from(bytes).toString('hex'),
      [
        '00000001', // req_depth
        '00000400', // req_size
        '0000003f', // ack_size
        '00000000', // rdma_size
        '0a4d0002', // send_addr
        '0a4d0001', // receive_addr
        '0fa0', // starting_port
        '0001', // nr_tasks
        '0000000a', // run_time
        '000000000000', // summary_only, rtprio, tracing, verify, show_params, show_perfdata
        '01', // use_cong_monitor
        '0000', // rdma_use_once, rdma_use_get_mr
        '01', // rdma_use_fence
        '0000', // rdma_cache_mrs, rdma_key_o_meter
        'ff', // suppress_warnings
        '0000', // simplex, rw_mode
        '00000001', // rdma_vector
        '00000000', // rdma_alignment
        '00000000', // connect_retries
      ].join(''),
    );
  });

  test('each field has its own place', () => {
    const offsets: [name: keyof control.StressOptions, at: number][] = [
      ['reqDepth', 3],
      ['reqSize', 7],
      ['ackSize', 11],
      ['rdmaSize', 15],
      ['sendAddr', 19],
      ['receiveAddr', 23],
      ['startingPort', 25],
      ['nrTasks', 27],
      ['runTime', 31],
      ['summaryOnly', 32],
      ['rtprio', 33],
      ['tracing', 34],
      ['verify', 35],
      ['showParams', 36],
      ['showPerfdata', 37],
      ['useCongMonitor', 38],
      ['rdmaUseOnce', 39],
      ['rdmaUseGetMr', 40],
      ['rdmaUseFence', 41],
      ['rdmaCacheMrs', 42],
      ['rdmaKeyOMeter', 43],
      ['suppressWarnings', 44],
      ['simplex', 45],
      ['rwMode', 46],
      ['rdmaVector', 50],
      ['rdmaAlignment', 54],
      ['connectRetries', 58],
      ['tos', 59],
      ['async', 60],
    ];
    assert.equal(offsets.length, Object.keys(control.defaultOptions).length);
    const zero = control.decodeOptions(new Uint8Array(control.VERSIONED_OPTIONS_BYTES), 'versioned');
    for (const [name, at] of offsets) {
      const bytes = control.encodeOptions({ ...zero, [name]: 0xab }, 'versioned').subarray(16);
      assert.deepEqual(
        [bytes.findIndex((byte) => byte !== 0), bytes.filter((byte) => byte !== 0)],
        [at, Uint8Array.of(0xab)],
        name,
      );
    }
  });

  test('a type of service or asynchronous sends ask for the versioned form', () => {
    assert.equal(control.formFor(control.defaultOptions), 'plain');
    assert.equal(control.formFor({ ...control.defaultOptions, async: 1 }), 'versioned');
    const bytes = control.encodeOptions({ ...control.defaultOptions, tos: 3 });
    assert.equal(bytes.length, control.VERSIONED_OPTIONS_BYTES);
    assert.equal(Buffer.from(bytes.subarray(0, 16)).toString('latin1'), `2.0.7${'\0'.repeat(11)}`);
    assert.equal(control.decodeOptions(bytes, 'versioned').tos, 3);
  });

  test('the passive side takes only its own version for one', () => {
    const first = (text: string): Uint8Array => Uint8Array.from(Buffer.from(text.padEnd(16, '\0'), 'latin1'));
    assert.equal(control.optionsForm(first('2.0.7')), 'versioned');
    assert.equal(control.optionsForm(first('2.0.6')), 'plain');
    assert.equal(control.optionsForm(first('2.0.71')), 'plain');
    assert.equal(control.optionsForm(first('2.1.0'), '2.1.0'), 'versioned');
    assert.equal(control.optionsForm(control.encodeOptions(control.defaultOptions).subarray(0, 16)), 'plain');
  });
});

/** One kernel's traffic to another in a capture: addresses, message sizes and how many of each operation. */
const runs: [name: string, requestBytes: number, ackBytes: number, peers: Peer[]][] = [
  [
    '02-rds-stress-q64-a64-linux61.pcap',
    64,
    64,
    [
      { side: 'client', from: 0x0a4d0001, to: 0x0a4d0002, requests: 105, acks: 104 },
      { side: 'server', from: 0x0a4d0002, to: 0x0a4d0001, requests: 104, acks: 104 },
    ],
  ],
  [
    '03-rds-stress-8k-linux61.pcap',
    8192,
    256,
    [
      { side: 'client', from: 0x0a4d0001, to: 0x0a4d0002, requests: 15, acks: 17 },
      { side: 'server', from: 0x0a4d0002, to: 0x0a4d0001, requests: 17, acks: 14 },
    ],
  ],
  [
    '04-rds-stress-1m-linux61.pcap',
    1_048_576,
    1_048_576,
    [
      { side: 'client', from: 0x0a4d0001, to: 0x0a4d0002, requests: 1, acks: 0 },
      { side: 'server', from: 0x0a4d0002, to: 0x0a4d0001, requests: 1, acks: 0 },
    ],
  ],
  [
    '09-rds-stress-linux72-dials-linux61.pcap',
    64,
    64,
    [
      { side: 'client', from: 0x0a4cff01, to: 0x0a4d0002, requests: 73, acks: 68 },
      { side: 'server', from: 0x0a4d0002, to: 0x0a4cff01, requests: 68, acks: 72 },
    ],
  ],
];

interface Peer {
  side: 'client' | 'server';
  from: number;
  to: number;
  requests: number;
  acks: number;
}

describe('captured runs', () => {
  for (const [name, requestBytes, ackBytes, peers] of runs) {
    const connections = readConnections(readVector(`rds/${name}`));
    for (const { side, from, to, requests, acks } of peers) {
      test(`${name}, from the ${side}: every header is the one that was due`, () => {
        const lanes = connections
          .map(({ directions }) => splitMessages(directions[side].bytes).messages)
          .filter((messages) => messages.length > 0);
        assert.equal(lanes.length, 1, 'one socket uses one lane');
        const ops = lanes[0]!.map((message, seq) => checkRun(message, seq, from, to, requestBytes, ackBytes));
        assert.equal(ops.filter((op) => op === stress.OP_REQ).length, requests);
        assert.equal(ops.filter((op) => op === stress.OP_ACK).length, acks);
      });
    }
  }

  /** Runs were made with one task, a depth of 1 and port 4000, so every field but the operation is known beforehand. */
  function checkRun(
    { bytes, payload }: WireMessage,
    seq: number,
    fromAddr: number,
    toAddr: number,
    requestBytes: number,
    ackBytes: number,
  ): number {
    const { op } = stress.decodeStressHeader(payload, 0);
    const due = { seq, fromAddr, toAddr, fromPort: 4001, toPort: 4001, index: 0, op };
    assert.equal(stress.checkStressHeader(payload, 0, due), undefined);
    assert.equal(payload.length, op === stress.OP_REQ ? requestBytes : ackBytes);
    assert.deepEqual([rds.sport(bytes, 0), rds.dport(bytes, 0)], [4001, 4001]);
    const again = new Uint8Array(stress.STRESS_HEADER_BYTES).fill(0xee);
    stress.encodeStressHeader(again, 0, due);
    assert.deepEqual(again, payload.slice(0, stress.STRESS_HEADER_BYTES));
    assert.equal(stress.isOldRetry(payload, 0, seq + 1), false);
    return op;
  }
});
