/**
 * Round trips by powers of two, as `--show-histogram` prints them: row i counts those from 2^i up to 2^(i+1)
 * microseconds. The first row also has what took less than one, the last row all that took longer.
 */

const rows = 16;

export class RttHistogram {
  readonly counts: number[] = new Array<number>(rows).fill(0);

  add(us: number): void {
    const whole = Math.min(Math.floor(us), 2 ** 31 - 1);
    const row = whole < 1 ? 0 : 31 - Math.clz32(whole);
    const at = Math.min(row, rows - 1);
    this.counts[at] = this.counts[at]! + 1;
  }

  lines(): string[] {
    const out = ['', 'RTT histogram', 'RTT (us)        \t\t    Count'];
    for (const [row, count] of this.counts.entries()) {
      const from = String(2 ** row).padStart(6);
      const to = (row === rows - 1 ? 'inf' : String(2 ** (row + 1))).padStart(6);
      out.push(`[${from} - ${to}] \t\t ${String(count).padStart(8)}`);
    }
    return out;
  }
}
