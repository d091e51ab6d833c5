package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	"hyperkube/packaging"
)

// docDir is the directory of the licenses, below the prefix.
const docDir = "share/doc/hyperkube"

// completions are the files of the completion scripts, by shell.
var completions = map[string]string{
	"bash": "share/bash-completion/completions/hyperkube",
	"zsh":  "share/zsh/site-functions/_hyperkube",
	"fish": "share/fish/vendor_completions.d/hyperkube.fish",
}

// installTree returns the files that the archive and the packages install, with paths below a
// prefix such as /usr: the program, the systemd unit, shell completions, manual pages, and the
// licenses of the components.
func (c config) installTree(ctx context.Context, t target, components []component) (tree, error) {
	files := tree{
		"bin/hyperkube": {source: t.program, executable: true},
		path.Join("lib/systemd/system", packaging.UnitName): {data: []byte(packaging.Unit(packaging.Command))},
		path.Join(docDir, "LICENSE"):                        {source: "LICENSE"},
		path.Join(docDir, "NOTICE"):                         {source: "NOTICE"},
	}
	for shell, name := range completions {
		cmd := exec.CommandContext(ctx, c.host, "completion", shell)
		cmd.Stderr = os.Stderr
		script, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("generating the completion script of %s: %w", shell, err)
		}
		files[name] = entry{data: script}
	}
	pages, err := filepath.Glob(filepath.Join(c.manual, "*.1"))
	if err != nil || len(pages) == 0 {
		return nil, fmt.Errorf("listing manual pages in %q: found %d: %w", c.manual, len(pages), err)
	}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			return nil, fmt.Errorf("reading a manual page: %w", err)
		}
		zipped, err := compress(data)
		if err != nil {
			return nil, err
		}
		files[path.Join("share/man/man1", filepath.Base(page)+".gz")] = entry{data: zipped}
	}
	for _, one := range components {
		for _, text := range one.licenses {
			files[path.Join(docDir, "licenses", one.directory(), text.name)] = entry{source: text.file}
		}
	}
	return files, nil
}

// compress returns data in the gzip format, without name and time.
func compress(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
