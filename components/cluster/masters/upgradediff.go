package masters

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/pmezard/go-difflib/difflib"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/progress"
	"hyperkube/internal/layout"
	"hyperkube/manifests"
)

// diff prints what an upgrade would change in the manifests of a master, with so many lines
// around each change. Nothing is printed where they stay as they are.
func (o *upgrade) diff(out io.Writer, l layout.Node, around int) error {
	if !identity.IsMaster(l) {
		return command.PreflightError(errors.New("this machine is no master that init or join has made: it has no manifests"))
	}
	if _, err := allowed(l); err != nil {
		return err
	}
	quiet := progress.New(func(progress.Step) {})
	write := func(played layout.Node) error {
		if !layout.Exists(settingsFile(l)) {
			return renewManifests(played, quiet, "", o.verbose)
		}
		m, err := (&initOptions{verbose: o.verbose}).again(l, io.Discard, func(string) bool { return false }, false)
		if err != nil {
			return err
		}
		m.layout = played
		return m.prepare()
	}
	return rehearseWrite(out, l, write, func(r *rehearsal) error { return r.diffManifests(around) })
}

// diffManifests prints how those manifests differ that were written.
func (r *rehearsal) diffManifests(around int) error {
	for _, name := range manifests.Components() {
		path := filepath.Join(r.real.StaticPods(), name+".yaml")
		old, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("reading a manifest: %w", err)
		}
		made, err := os.ReadFile(filepath.Join(r.played.StaticPods(), name+".yaml"))
		if err != nil {
			return fmt.Errorf("reading a manifest: %w", err)
		}
		made = bytes.ReplaceAll(made, []byte(r.root), []byte(r.realRoot()))
		err = difflib.WriteUnifiedDiff(r.out, difflib.UnifiedDiff{
			A: lines(old), B: lines(made), FromFile: path, ToFile: "new manifest", Context: around,
		})
		if err != nil {
			return fmt.Errorf("printing a difference: %w", err)
		}
	}
	return nil
}

// lines of a text, each with its end.
func lines(text []byte) []string {
	var out []string
	for line := range bytes.Lines(text) {
		out = append(out, string(line))
	}
	return out
}
