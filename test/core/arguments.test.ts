import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import * as check from '../../src/core/arguments.ts';

const WRONG_TYPE = { name: 'TypeError', code: 'ERR_INVALID_ARG_TYPE' };
const WRONG_RANGE = { name: 'RangeError', code: 'ERR_OUT_OF_RANGE' };

describe('checks of arguments', () => {
  it('take integers within both bounds', () => {
    for (const value of [1, 2, 65_535]) check.checkInteger('port', value, 1, 65_535);
    for (const value of [0, 65_536, 1.5, Number.NaN, Number.POSITIVE_INFINITY]) {
      assert.throws(() => check.checkInteger('port', value, 1, 65_535), {
        ...WRONG_RANGE,
        message: `The value of "port" is out of range. It must be an integer >= 1 and <= 65535. Received ${value}`,
      });
    }
    for (const value of ['1', null, undefined, 1n, {}]) {
      assert.throws(() => check.checkInteger('port', value, 1, 65_535), WRONG_TYPE);
    }
  });

  it('take undefined where the argument is optional, and nothing else that is wrong', () => {
    check.checkOptionalInteger('n', undefined, 0, 1);
    check.checkOptionalInteger('n', 1, 0, 1);
    assert.throws(() => check.checkOptionalInteger('n', null, 0, 1), WRONG_TYPE);
    assert.throws(() => check.checkOptionalInteger('n', 2, 0, 1), WRONG_RANGE);
    check.checkOptionalBoolean('on', undefined);
    check.checkOptionalBoolean('on', false);
    assert.throws(() => check.checkOptionalBoolean('on', 0), WRONG_TYPE);
  });

  it('take strings, objects and abort signals for what they are', () => {
    check.checkString('address', '');
    assert.throws(() => check.checkString('address', 5), WRONG_TYPE);
    check.checkObject('options', {});
    assert.throws(() => check.checkObject('options', null), WRONG_TYPE);
    assert.throws(() => check.checkObject('options', 'text'), WRONG_TYPE);
    check.checkSignal('signal', undefined);
    check.checkSignal('signal', new AbortController().signal);
    assert.throws(() => check.checkSignal('signal', {}), WRONG_TYPE);
  });

  const received: [value: unknown, text: string][] = [
    [undefined, 'undefined'],
    [null, 'null'],
    ['x', 'type string ("x")'],
    [5n, 'type bigint (5)'],
    [new Map(), 'an instance of Map'],
    [Object.create(null), 'an instance of Object'],
    [function named() {}, 'function named'],
  ];
  for (const [value, text] of received) {
    it(`describe what came: ${text}`, () => {
      assert.equal(
        check.wrongType('it', 'of type number', value).message,
        `The "it" argument must be of type number. Received ${text}`,
      );
    });
  }
});
