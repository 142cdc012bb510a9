/** What a run measured: as an object for `--json`, and as lines whose last one is that of the kernel's selftest. */
import type { CopyCause, HistogramSnapshot } from '../../net/index.ts';
import type { Pumped } from './pump.ts';
import type { Received } from './receiver.ts';
import type { Counts, Sender } from './sender.ts';
import type { Settings } from './settings.ts';

export interface SendReport {
  readonly role: 'send';
  readonly test: string;
  readonly family: 4 | 6;
  readonly from: string;
  readonly to: string;
  readonly zerocopy: boolean;
  readonly payloadBytes: number;
  readonly datagramsPerSend: number;
  readonly limit: number;
  readonly endedBy: Pumped['endedBy'];
  readonly seconds: number;
  /** Sends, with the bytes of those that are done; those confirmed, if memory was lent; and whether nothing was copied. */
  readonly tx: number;
  readonly txBytes: number;
  readonly txc: number;
  readonly zc: boolean;
  readonly mbPerSecond: number;
  readonly cpuUserSeconds: number;
  readonly cpuSystemSeconds: number;
  /** Of this process; null if nothing was sent. */
  readonly cpuSecondsPerGB: number | null;
  /** `exact` is false where the kernel merged its confirmations, so that the bytes are an estimate. */
  readonly copied: {
    readonly bytes: number;
    readonly share: number;
    readonly exact: boolean;
    readonly kernelBytes: number;
    readonly byCause: Partial<Record<CopyCause, number>>;
  };
  /** From the call to the release of the memory; null if nothing was lent. */
  readonly release: {
    readonly count: number;
    readonly p50Us: number;
    readonly p99Us: number;
    readonly maxUs: number;
  } | null;
  /** What the receiver got, if it was ours. */
  readonly received: Received | null;
}

export function sendReport(
  settings: Settings,
  { from, to, family }: Sender,
  pumped: Pumped,
  counts: Counts,
  received: Received | null,
): SendReport {
  const { test, zerocopy, payloadBytes, datagrams, limit } = settings;
  const { bytes, copiedBytes, exact, seconds, cpuUserSeconds, cpuSystemSeconds, endedBy } = pumped;
  return {
    role: 'send',
    test,
    family,
    from,
    to,
    zerocopy,
    payloadBytes,
    datagramsPerSend: datagrams,
    limit,
    endedBy,
    seconds,
    tx: pumped.sends,
    txBytes: bytes,
    txc: zerocopy ? pumped.completed : 0,
    zc: zerocopy && bytes > 0 && copiedBytes === 0,
    mbPerSecond: bytes / 1e6 / seconds,
    cpuUserSeconds,
    cpuSystemSeconds,
    cpuSecondsPerGB: bytes === 0 ? null : (cpuUserSeconds + cpuSystemSeconds) / (bytes / 1e9),
    copied: {
      bytes: copiedBytes,
      share: bytes === 0 ? 0 : copiedBytes / bytes,
      exact,
      kernelBytes: counts.kernelCopiedBytes,
      byCause: Object.fromEntries(Object.entries(counts.copied).filter(([, its]) => its > 0)),
    },
    release: releaseOf(counts.latency),
    received,
  };
}

function releaseOf(latency: HistogramSnapshot): SendReport['release'] {
  const { count, maxUs } = latency;
  if (count === 0) return null;
  return { count, p50Us: quantile(latency, 0.5), p99Us: quantile(latency, 0.99), maxUs };
}

/** The upper bound of the bucket that the quantile falls in: a power of two of a microsecond. */
export function quantile({ count, maxUs, buckets }: HistogramSnapshot, share: number): number {
  let below = 0;
  for (const bucket of buckets) {
    below += bucket.count;
    if (below >= share * count) return Math.min(bucket.belowUs, maxUs);
  }
  return maxUs;
}

/** What is about to be done. */
export function headLine(settings: Settings, { to }: Sender): string {
  const { test, datagrams, payloadBytes, zerocopy, limit } = settings;
  const each = datagrams === 1 ? '' : `${datagrams} datagrams of `;
  const how = zerocopy ? 'lent (-z)' : 'copied (no -z)';
  return `${test} to ${to}: ${each}${payloadBytes} bytes a send, ${how}, at most ${limit} under way`;
}

/** What was done. */
export function sendLines(report: SendReport): string[] {
  const { release, received, copied } = report;
  const lines = [
    line(
      'sent',
      `${mb(report.txBytes)} in ${report.seconds.toFixed(2)} s, ${report.mbPerSecond.toFixed(0)} MB/s`,
    ),
    line('CPU', cpu(report)),
    line('copied', `${(copied.share * 100).toFixed(1)} %${causes(report)}`),
  ];
  if (release !== null) {
    const { p50Us, p99Us, maxUs } = release;
    const times = [`half within ${time(p50Us)}`, `99 % within ${time(p99Us)}`, `the longest ${time(maxUs)}`];
    lines.push(line('released', times.join(', ')));
  }
  if (received !== null) lines.push(line('received', receivedText(received, report)));
  const { tx, txBytes, txc, zc } = report;
  return [...lines, `tx=${tx} (${mib(txBytes)} MB) txc=${txc} zc=${zc ? 'y' : 'n'}`];
}

export function receiveLine({ packets, bytes }: Received): string {
  return `rx=${packets} (${mib(bytes)} MB)`;
}

function line(label: string, text: string): string {
  return `  ${label.padEnd(10)}${text}`;
}

function cpu({ cpuSecondsPerGB, cpuUserSeconds, cpuSystemSeconds }: SendReport): string {
  const each = cpuSecondsPerGB === null ? 'nothing sent' : `${cpuSecondsPerGB.toFixed(3)} s for each GB`;
  return `${each} (user ${cpuUserSeconds.toFixed(2)} s, system ${cpuSystemSeconds.toFixed(2)} s), of this process`;
}

function causes({ copied: { kernelBytes, byCause, exact }, zerocopy }: SendReport): string {
  if (!zerocopy) return '';
  const parts = [
    ...(kernelBytes > 0 ? [`${mb(kernelBytes)} by the kernel`] : []),
    ...Object.entries(byCause).map(([cause, bytes]) => `${mb(bytes)} by zerotx (${cause})`),
  ];
  const text = parts.length === 0 ? '' : `: ${parts.join(', ')}`;
  return exact ? text : `${text} (as far as merged confirmations tell)`;
}

function receivedText({ packets, bytes, seconds }: Received, { test, txBytes }: SendReport): string {
  const rate = seconds > 0 ? `, ${(bytes / 1e6 / seconds).toFixed(0)} MB/s` : '';
  const what = test === 'tcp' ? 'reads' : test === 'udp' ? 'datagrams' : 'messages';
  const lost =
    test === 'udp' && bytes < txBytes ? `, ${((1 - bytes / txBytes) * 100).toFixed(1)} % lost` : '';
  return `${mb(bytes)} in ${packets} ${what}${rate}${lost}`;
}

function mb(bytes: number): string {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

/** The selftest's MB. */
function mib(bytes: number): number {
  return Math.floor(bytes / 2 ** 20);
}

function time(us: number): string {
  return us < 1000 ? `${Math.ceil(us)} us` : `${(us / 1000).toFixed(1)} ms`;
}
