// Reads references with zarrita, and prints the SHA-256 of their pixels as little-endian bytes.
import { createHash } from "node:crypto";
import { open, readFile, readdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import ReferenceStore from "@zarrita/storage/ref";
import * as zarr from "zarrita";

// A browser fetches ranges of bytes from a server; here they lie on the disk.
async function fetchFile(request) {
  const [start, stop] = request.headers.get("range").slice("bytes=".length).split("-").map(Number);
  const file = await open(fileURLToPath(request.url));
  try {
    const data = Buffer.alloc(stop + 1 - start);
    const { bytesRead } = await file.read(data, 0, data.length, start);
    return new Response(data.subarray(0, bytesRead), { status: 206 });
  } finally {
    await file.close();
  }
}

// Pixels of chunks that were transposed come in the order of their bytes.
function inOrder({ data, shape, stride }) {
  const ordered = new data.constructor(data.length);
  for (let number = 0; number < data.length; number++) {
    let [rest, place] = [number, 0];
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      place += (rest % shape[axis]) * stride[axis];
      rest = Math.floor(rest / shape[axis]);
    }
    ordered[number] = data[place];
  }
  return ordered;
}

const found = {};
const folder = process.argv[2];
for (const name of (await readdir(folder)).filter((name) => name.endsWith(".json"))) {
  const key = name.slice(0, -".json".length);
  try {
    const references = JSON.parse(await readFile(`${folder}/${name}`, "utf8"));
    const store = ReferenceStore.fromSpec(references, { fetch: fetchFile });
    const array = await zarr.open(zarr.root(store).resolve("data"), { kind: "array" });
    const data = inOrder(await zarr.get(array));
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    found[key] = createHash("sha256").update(bytes).digest("hex");
  } catch (error) {
    found[key] = `!${error}`;
  }
}
console.log(JSON.stringify(found));
