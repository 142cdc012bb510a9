/** Programs under a small net.core.optmem_max, in a network namespace of their own (one per namespace since Linux 6.8). */
import { type SpawnSyncReturns, spawnSync } from 'node:child_process';

const OPTMEM = '/proc/sys/net/core/optmem_max';

export function underOptmem(optmemBytes: number, ...command: string[]): SpawnSyncReturns<string> {
  const setUp = `ip link set lo up && echo ${optmemBytes} > ${OPTMEM} && exec "$0" "$@"`;
  return spawnSync('unshare', ['--net', 'sh', '-c', setUp, ...command], {
    encoding: 'utf8',
    timeout: 30_000,
  });
}

/** Why that cannot be had here. */
export function optmemSkipReason(): string | false {
  if (process.getuid?.() !== 0) return 'needs root, for a network namespace';
  const probe = underOptmem(4096, 'cat', OPTMEM);
  return probe.stdout === '4096\n' ? false : `optmem_max is not per namespace here: ${probe.stderr.trim()}`;
}
