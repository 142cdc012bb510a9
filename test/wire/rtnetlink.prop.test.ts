import assert from 'node:assert/strict';
import { it } from 'node:test';
import fc from 'fast-check';
import { ZerotxError } from '../../src/core/errors.ts';
import { decodeAnswer } from '../../src/wire/rtnetlink.ts';

if (process.env.FC_SEED !== undefined) fc.configureGlobal({ seed: Number(process.env.FC_SEED) });

it('any bytes are an answer or EPROTO, and reading them ends', () => {
  const body = fc.uint8Array({ minLength: 0, maxLength: 200 });
  const types = fc.constantFrom(2, 3, 16, 24, 99);
  fc.assert(
    fc.property(body, types, fc.boolean(), (bytes, type, honest) => {
      const whole = new Uint8Array(16 + bytes.length);
      whole.set(bytes, 16);
      const header = new Uint32Array(1);
      header[0] = honest ? whole.length : (bytes[0] ?? 0);
      whole.set(new Uint8Array(header.buffer), 0);
      whole.set(new Uint8Array(Uint16Array.of(type).buffer), 4);
      try {
        assert.ok(['route', 'link', 'error'].includes(decodeAnswer(whole).kind));
      } catch (error) {
        assert.ok(error instanceof ZerotxError && error.code === 'EPROTO', String(error));
      }
    }),
    { numRuns: 2000 },
  );
});
