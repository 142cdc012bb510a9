/**
 * What the kernel alone costs: a small C program sends messages of one size to the wire peer, with and without
 * MSG_ZEROCOPY, in a blocking loop out of cold memory that it never touches. A lower bound for what any program can gain
 * on this machine, and the proof that the peer works: nothing copied, nothing retransmitted.
 */
import { medianInterval, pairedRatio } from '../stats.ts';
import {
  type Group,
  groupedSuite,
  measured,
  type Results,
  type Suite,
  type SuiteOptions,
  skipped,
} from '../suite.ts';
import { CSender, cpuUs } from '../wirepeer/c-sender.ts';
import { type WirePeer, wirePeerOrReason } from '../wirepeer/index.ts';

const KIB = 1 << 10;
const WORKING_SET_BYTES = 64 << 20;
const SLICE_BYTES = 1500 << 20;
const QUICK_SLICE_BYTES = 200 << 20;
const FIRST_BYTES = 8240;
const PORT = 16385;
const GREETING = Buffer.alloc(16, 'g');

function tcpCpu(size: string, messageBytes: number): Group {
  const name = `tcpCpu${size}`;
  const keys = [`${name}.zcVsCopy`, `${name}.copy`, `${name}.zerocopy`];
  const run = async (options: SuiteOptions): Promise<Results> => {
    const peer = await wirePeerOrReason({ greeting: GREETING, expectBytes: FIRST_BYTES, port: PORT });
    if (typeof peer === 'string') return Object.fromEntries(keys.map((key) => [key, skipped(peer)]));
    let sender: CSender | undefined;
    try {
      const memory = [messageBytes, WORKING_SET_BYTES];
      const args = [peer.peerAddress, PORT, FIRST_BYTES, GREETING.length, ...memory];
      sender = await CSender.start('tcp-sender', peer.senderPrefix, args);
      await peer.armed;
      return await measure(name, messageBytes, options, peer, sender);
    } finally {
      sender?.stop();
      await peer.stop();
    }
  };
  return { keys, run };
}

async function measure(
  name: string,
  messageBytes: number,
  options: SuiteOptions,
  peer: WirePeer,
  sender: CSender,
): Promise<Results> {
  const count = Math.round((options.quick ? QUICK_SLICE_BYTES : SLICE_BYTES) / messageBytes);
  const { copy, zerocopy } = await sender.pairs(name, count, options.pairs);
  const copiedCalls = zerocopy.reduce((sum, report) => sum + report.copiedCalls, 0);
  const zerocopyCalls = zerocopy.reduce((sum, report) => sum + report.zerocopyCalls, 0);
  const retransmits = zerocopy.at(-1)!.retransmits!;
  const { packets, acks } = await peer.stats();
  return {
    [`${name}.zcVsCopy`]: measured(pairedRatio(zerocopy.map(cpuUs), copy.map(cpuUs)), {
      details: { zerocopyCalls, copiedCalls, retransmits, packets, acks },
    }),
    [`${name}.copy`]: measured(medianInterval(copy.map(cpuUs)), { unit: 'us' }),
    [`${name}.zerocopy`]: measured(medianInterval(zerocopy.map(cpuUs)), { unit: 'us' }),
  };
}

export const suite: Suite = groupedSuite('MSG_ZEROCOPY against copying, a C program into the wire peer', [
  tcpCpu('16K', 16 * KIB),
  tcpCpu('64K', 64 * KIB),
  tcpCpu('256K', 256 * KIB),
  tcpCpu('1M', 1024 * KIB),
]);
