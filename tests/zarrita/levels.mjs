// Reads the levels of OME-Zarr images with zarrita, and prints their shapes and the SHA-256 of
// their pixels as little-endian bytes.
import { createHash } from "node:crypto";
import { readdir } from "node:fs/promises";
import FileSystemStore from "@zarrita/storage/fs";
import * as zarr from "zarrita";

const found = {};
const folder = process.argv[2];
for (const name of await readdir(folder)) {
  try {
    const group = await zarr.open(new FileSystemStore(`${folder}/${name}`), { kind: "group" });
    const levels = [];
    for (const { path } of (group.attrs.ome ?? group.attrs).multiscales[0].datasets) {
      const { data, shape } = await zarr.get(await zarr.open(group.resolve(path), { kind: "array" }));
      const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
      levels.push([shape, createHash("sha256").update(bytes).digest("hex")]);
    }
    found[name] = { levels };
  } catch (error) {
    found[name] = `!${error}`;
  }
}
console.log(JSON.stringify(found));
