/**
 * What a descriptor chain means, written down a second time, slowly: BigInt, objects, one list of the whole chain before
 * anything is judged. It knows the specification and the limits that the code states, not how the code does it.
 */
import {
  type Descriptor,
  type GuestRam,
  INDIRECT,
  NEXT,
  type Piece,
  readDescriptor,
  WRITE,
} from './vring.ts';

export interface ModelOptions {
  readonly size: number;
  readonly writable: boolean;
  readonly indirect: boolean;
  readonly bytesMax: bigint;
  /** Segments that a table has room for. */
  readonly segmentsMax: number;
  readonly descriptorsMax: number;
}

export type Verdict =
  | { readonly kind: 'chain'; readonly pieces: readonly Piece[] }
  | { readonly kind: 'skip'; readonly reason: string }
  | { readonly kind: 'broken'; readonly reason: string };

const skip = (reason: string): Verdict => ({ kind: 'skip', reason });
const broken = (reason: string): Verdict => ({ kind: 'broken', reason });

/** One visited descriptor, or what is wrong with the way to it. */
type Step = Descriptor | { readonly wrong: Verdict };

export function judge(desc: DataView, ram: GuestRam, head: number, options: ModelOptions): Verdict {
  const pieces: Piece[] = [];
  let total = 0n;
  for (const step of visit(desc, ram, head, options)) {
    if ('wrong' in step) return step.wrong;
    const isWrite = (step.flags & WRITE) !== 0;
    if (isWrite !== options.writable) return skip('direction');
    if (step.length === 0) continue;
    if (step.address >= 1n << 52n) return skip('address');
    total += BigInt(step.length);
    if (total > options.bytesMax) return skip('length');
    if (pieces.length === options.segmentsMax) return skip('segments');
    pieces.push({ address: step.address, length: step.length });
  }
  return pieces.length === 0 ? skip('empty') : { kind: 'chain', pieces };
}

/** The data descriptors of a chain in order, those of an indirect table in the place of the one that names it. */
function* visit(desc: DataView, ram: GuestRam, head: number, options: ModelOptions): Generator<Step> {
  for (const step of follow(desc, options.size, head, options)) {
    if ('wrong' in step || (step.flags & INDIRECT) === 0) {
      yield step;
      continue;
    }
    const { length, flags, address } = step;
    if (!options.indirect) return yield { wrong: broken('indirectFeature') };
    if ((flags & NEXT) !== 0) return yield { wrong: broken('indirectNext') };
    const count = length / 16;
    if (count < 1 || !Number.isInteger(count) || count > options.descriptorsMax) {
      return yield { wrong: broken('indirectLength') };
    }
    const bytes = address >= 1n << 52n ? null : ram.find(address, length);
    if (bytes === null) return yield { wrong: skip('address') };
    const table = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    for (const inner of follow(table, count, 0, options)) {
      if (!('wrong' in inner) && (inner.flags & INDIRECT) !== 0) {
        return yield { wrong: broken('indirectNested') };
      }
      yield inner;
    }
  }
}

/** The descriptors that `next` leads to in one table. */
function* follow(table: DataView, count: number, head: number, options: ModelOptions): Generator<Step> {
  const most = Math.min(count, options.descriptorsMax);
  let index = head;
  for (let visited = 0; visited < most; visited++) {
    const step = readDescriptor(table, index);
    yield step;
    if ((step.flags & NEXT) === 0) return;
    index = step.next;
    if (index >= count) return yield { wrong: broken('next') };
  }
  yield { wrong: broken('loop') };
}
