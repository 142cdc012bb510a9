/** Segmentation offload of UDP, both ways: many datagrams by one call, and many received as one. */
import { ZerotxError } from '../../core/errors.ts';
import { type Check, type Result, result } from '../finding.ts';
import { Absent } from '../loopback.ts';
import { tryGro, trySegment } from '../segments.ts';

async function segment({ signal }: { signal: AbortSignal }): Promise<Result> {
  return refusable('4.18', async () => {
    const datagrams = await trySegment(signal);
    return result('ok', `one call made ${datagrams} datagrams (UDP_SEGMENT)`, { data: { datagrams } });
  });
}

async function gro({ signal }: { signal: AbortSignal }): Promise<Result> {
  return refusable('5.0', async () => {
    const bytes = await tryGro(signal);
    if (bytes === 0) return result('warn', 'UDP_GRO is taken, but datagrams come one by one');
    return result('ok', `datagrams of one call came undivided, ${bytes} bytes (UDP_GRO)`, {
      data: { bytes },
    });
  });
}

/** ENOPROTOOPT: older kernels, and sandboxes. EIO: segments that the device cannot checksum. */
async function refusable(since: string, work: () => Promise<Result>): Promise<Result> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof ZerotxError) || error instanceof Absent) throw error;
    return result('warn', error.message, {
      remedy: `needs Linux ${since} or later`,
      data: { code: error.code },
    });
  }
}

export const udpChecks: readonly Check[] = [
  { id: 'udp.segment', title: 'UDP segmentation', run: segment },
  { id: 'udp.gro', title: 'UDP receive coalescing', run: gro },
];
