/** Programs of this host that show their RDS nodes: those with a control socket that answers for RDS. */
import { controlSockets } from '../../net/index.ts';
import { askRds, type RdsSummaryAnswer } from '../../rds/index.ts';
import { lookedIn } from '../control-places.ts';

export interface RdsProgram {
  readonly path: string;
  readonly summary: RdsSummaryAnswer;
}

const REMEDY =
  'a program shows its nodes if it is started with ZEROTX_CONTROL=1 or calls openControl() of zerotx/net';

/** All that can be asked, or those of one process; by process and thread. Says why, if there is none; `silent` are those that do not answer. */
export async function rdsPrograms(
  pid: number | undefined,
  silent: (pid: number) => void,
): Promise<RdsProgram[] | string> {
  const asked = controlSockets().filter((socket) => pid === undefined || socket.pid === pid);
  const answers = await Promise.all(
    asked.map(async ({ path, pid: claimed }) => {
      try {
        const summary = await askRds(path);
        // Who answers must be who its socket's name says.
        return summary.pid === claimed && summary.nodes.length > 0 ? [{ path, summary }] : [];
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === 'ETIMEDOUT') silent(claimed);
        // Gone meanwhile, or long ago, or not willing, or without RDS: there may be others.
        return [];
      }
    }),
  );
  const programs = answers.flat();
  if (programs.length > 0) return programs;
  if (pid !== undefined) return `process ${pid} shows no RDS node: ${REMEDY}; ${lookedIn()}`;
  const whose = process.geteuid?.() === 0 ? 'on this host' : 'of yours';
  return `no program ${whose} shows an RDS node: ${REMEDY}; ${lookedIn()}`;
}
