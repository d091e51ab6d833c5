package upconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/layout"
)

// Running is the configuration of the running process of `up`, which the process saves when it starts.
type Running struct {
	// Args are the flags of its command line that a later `up` keeps unless they are set again.
	Args []string `json:"args,omitempty"`
	// Text is the result of Config.Text for replacing. It is empty for the default configuration.
	Text string `json:"text,omitempty"`
}

// runningFile returns the file in which the main process stores its configuration. The file does not exist if the
// process has the default configuration.
func runningFile(l layout.Node) string { return filepath.Join(l.Run, "config.json") }

// LoadRunning returns the configuration of the process that last ran the cluster since the machine was booted. It
// returns the zero value if that was the default configuration.
func LoadRunning(l layout.Node) (Running, error) {
	var r Running
	data, err := os.ReadFile(runningFile(l))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return r, fmt.Errorf("reading the configuration of the running cluster: %w", err)
	}
	return r, nil
}

// Save stores the configuration for LoadRunning, or deletes the file if the configuration is the default. Only root can
// read the file, because it may contain secrets.
func (r Running) Save(l layout.Node) error {
	if len(r.Args) == 0 && r.Text == "" {
		if err := os.Remove(runningFile(l)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing the configuration of the previous process: %w", err)
		}
		return nil
	}
	data, err := json.Marshal(r)
	if err == nil {
		err = atomicfile.Write(atomicfile.File{Path: runningFile(l), Data: data, Mode: 0o600, SkipSync: true})
	}
	if err != nil {
		return fmt.Errorf("saving the configuration of the running cluster: %w", err)
	}
	return nil
}

// KeptArgs returns the flags that are set on the command line and that a later `up` keeps unless it sets them. It
// leaves out flags that only have an effect at the first start or for one call of the command.
func KeptArgs(flags *pflag.FlagSet) []string {
	var args []string
	flags.Visit(func(f *pflag.Flag) {
		if f.Name != "config" && (noKeys[f.Name] != "" || isFirstStart(f.Name)) {
			return
		}
		args = append(args, "--"+f.Name+"="+argumentOf(f))
	})
	return args
}

// argumentOf returns the value of a flag as it is written on the command line, with the elements of a list separated by
// commas.
func argumentOf(f *pflag.Flag) string {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return strings.Join(list.GetSlice(), ",")
	}
	return f.Value.String()
}

// Keep sets the flags of args that are not set in flags, and returns their arguments. It ignores flags that do not
// exist and invalid values.
func Keep(flags *pflag.FlagSet, args []string) []string {
	var kept []string
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if f := flags.Lookup(name); f != nil && !f.Changed && flags.Set(name, value) == nil {
			kept = append(kept, arg)
		}
	}
	return kept
}
