/** Memory of WebAssembly for tests: its type declarations come with those of browsers, which are not loaded here. */

export interface WasmMemory {
  /** Another one after each grow(), which detaches it. */
  readonly buffer: ArrayBuffer;
  grow(pages: number): number;
}

interface Globals {
  readonly WebAssembly: {
    readonly Memory: new (options: { initial: number; maximum: number }) => WasmMemory;
  };
}

/** Pages have 64 KiB. */
export function wasmMemory(initial: number, maximum: number): WasmMemory {
  const { WebAssembly } = globalThis as unknown as Globals;
  return new WebAssembly.Memory({ initial, maximum });
}
