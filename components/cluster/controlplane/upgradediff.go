package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/pmezard/go-difflib/difflib"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/progress"
	"hyperkube/internal/host/layout"
	"hyperkube/manifests"
)

// diff prints the changes of an upgrade to the static pod manifests of this control plane node,
// with the given number of context lines. Unchanged manifests are not printed.
func (o *upgrade) diff(out io.Writer, l layout.Node, around int) error {
	if !clusterconfig.IsControlPlane(l) {
		return command.PreflightError(errors.New("this machine is not a control plane node of init or join: it has no manifests"))
	}
	if _, err := checkUpgradeAllowed(l); err != nil {
		return err
	}
	quiet := progress.New(func(progress.Step) {})
	write := func(played layout.Node) error {
		if !layout.Exists(settingsFile(l)) {
			return rewriteManifests(played, quiet, "", o.verbose)
		}
		m, err := (&initOptions{verbose: o.verbose}).newNode(l, io.Discard, func(string) bool { return false }, false)
		if err != nil {
			return err
		}
		m.layout = played
		return m.prepare()
	}
	return dryRunWrite(out, l, write, func(r *dryRunner) error { return r.diffManifests(around) })
}

// diffManifests prints the differences between the static pod manifests of the machine and those that the dry run has
// written. around is the number of unchanged lines around each difference.
func (r *dryRunner) diffManifests(around int) error {
	for _, name := range manifests.Components() {
		path := filepath.Join(r.real.StaticPods(), name+".yaml")
		old, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("reading manifest: %w", err)
		}
		made, err := os.ReadFile(filepath.Join(r.staged.StaticPods(), name+".yaml"))
		if err != nil {
			return fmt.Errorf("reading manifest: %w", err)
		}
		made = bytes.ReplaceAll(made, []byte(r.root), []byte(r.real.Root()))
		err = difflib.WriteUnifiedDiff(r.out, difflib.UnifiedDiff{
			A: lines(old), B: lines(made), FromFile: path, ToFile: "new manifest", Context: around,
		})
		if err != nil {
			return fmt.Errorf("printing diff: %w", err)
		}
	}
	return nil
}

// lines splits a text into lines that include their line ends.
func lines(text []byte) []string {
	var out []string
	for line := range bytes.Lines(text) {
		out = append(out, string(line))
	}
	return out
}
