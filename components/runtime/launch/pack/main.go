// Pack compresses the container runtime's program for package launch: the same
// bytes for the same program, always.
package main

import (
	"fmt"
	"os"

	"github.com/klauspost/compress/zstd"
)

func main() {
	if err := pack(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func pack(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: pack PROGRAM PACKED")
	}
	data, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	tmp := args[1] + ".tmp"
	if err := os.WriteFile(tmp, z.EncodeAll(data, nil), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, args[1])
}
