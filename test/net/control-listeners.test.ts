/** Which folders of the kernel's table of Unix sockets have control sockets that are listened at. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { foldersIn } from '../../src/net/control-listeners.ts';

/** As the kernel prints it, with `flags`, type and state of a stream socket that listens unless said otherwise. */
function table(...paths: readonly (string | readonly [flags: string, path: string])[]): string {
  const lines = paths.map((entry) => {
    const [flags, path] = typeof entry === 'string' ? ['00010000', entry] : entry;
    return `000000004eb6e87a: 00000002 00000000 ${flags} 0001 01 41125 ${path}`;
  });
  return ['Num       RefCount Protocol Flags    Type St Inode Path', ...lines, ''].join('\n');
}

describe('folders of control sockets', () => {
  it('are those of listening sockets with such a name, each once', () => {
    const found = foldersIn(
      table(
        '/run/user/1000/zerotx/4711.sock',
        '/run/user/1000/zerotx/4711.3.sock',
        '/srv/my app/run/zerotx/1.sock',
        '/tmp/zerotx-1000/99.sock',
      ),
    );
    assert.deepEqual(found, ['/run/user/1000/zerotx', '/srv/my app/run/zerotx', '/tmp/zerotx-1000']);
  });

  it('are not those of anything else', () => {
    const none = table(
      '@/run/zerotx/1.sock',
      'zerotx/1.sock',
      '/run/docker.sock',
      '/run/zerotx/0.sock',
      '/run/zerotx/1.sock.old',
      '/run/notzerotx/1.sock',
      '/run/zerotx-a/1.sock',
      ['00000000', '/run/zerotx/2.sock'],
    );
    assert.deepEqual(foldersIn(none), []);
    assert.deepEqual(foldersIn(''), []);
  });

  it('have a limit', () => {
    const many = Array.from({ length: 5000 }, (_, i) => `/tmp/${i}/zerotx/1.sock`);
    assert.equal(foldersIn(table(...many)).length, 1024);
  });
});
