// Definitions writes the CustomResourceDefinitions of a required module to a file: one JSON document per line, compressed
// with zstd. PATTERN matches their files in the module.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: definitions MODULE PATTERN FILE")
		os.Exit(2)
	}
	data, err := definitions(os.Args[1], os.Args[2])
	if err == nil {
		err = os.WriteFile(os.Args[3], data, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "definitions:", err)
		os.Exit(1)
	}
}

// definitions returns the compressed definitions in the files of a module that match pattern.
func definitions(module, pattern string) ([]byte, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return nil, fmt.Errorf("finding the module %s: %w", module, err)
	}
	files, err := filepath.Glob(filepath.Join(string(bytes.TrimSpace(dir)), pattern))
	if err != nil {
		return nil, err
	}
	var lines bytes.Buffer
	for _, file := range files {
		if filepath.Base(file) == "gateway.networking.k8s.io_vap_safeupgrades.yaml" {
			continue // a policy, which would also apply to definitions that the user manages
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		line, err := yaml.YAMLToJSON(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		lines.Write(line)
		lines.WriteByte('\n')
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return encoder.EncodeAll(lines.Bytes(), nil), nil
}
