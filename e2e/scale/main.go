// Command scale measures how memory and latency of the API server grow with the number of stored
// pods, and prints the figures that docs/development/performance.md contains. It starts a separate etcd and API
// server on free ports. With -up it also starts a whole cluster with the default paths, for which
// it needs root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b := bench{}
	sizes := flag.String("pods", "10000,30000,100000", "Numbers of pods to measure.")
	created := flag.Int("created", 20000, "Number of pods to create one by one, for the memory of an active API server; 0 disables this.")
	flag.StringVar(&b.binary, "binary", "bin/hyperkube", "Path to the program to measure.")
	flag.BoolVar(&b.up, "up", false, "Also measure `hyperkube up`; an existing cluster is removed.")
	flag.StringVar(&b.root, "root", "", "Root directory of that cluster; empty means the default paths.")
	flag.IntVar(&b.watchers, "watchers", 1000, "Number of concurrent watchers.")
	flag.BoolVar(&b.profile, "profile", false, "Write heap profiles to the working directory.")
	flag.StringVar(&b.only, "only", "", "Parts to measure: start, list, select, informers, watch, slow, or only up; empty means all.")
	flag.Parse()
	err := b.run(ctx, *created, *sizes)
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// bench contains the flags of the command. only restricts the parts to measure.
type bench struct {
	binary, root string
	up, profile  bool
	watchers     int
	only         string
}

// wants reports whether a part must be measured: -only contains it or is empty.
func (b *bench) wants(part string) bool {
	return b.only == "" || strings.Contains(","+b.only+",", ","+part+",")
}

// run executes the measurements. created is the number of pods for an active API server, sizes a list of numbers of
// stored pods, separated by commas.
func (b *bench) run(ctx context.Context, created int, sizes string) error {
	path, err := filepath.Abs(b.binary)
	if err != nil {
		return err
	}
	b.binary = path
	apart := b.only != "up"
	if created > 0 {
		if err := b.created(ctx, created); err != nil {
			return fmt.Errorf("creating %d pods: %w", created, err)
		}
	}
	for text := range strings.FieldsFuncSeq(sizes, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("-pods: %w", err)
		}
		if apart {
			if err := b.apart(ctx, n); err != nil {
				return fmt.Errorf("%d pods, API server alone: %w", n, err)
			}
		}
		if !b.up {
			continue
		}
		if err := b.whole(ctx, n); err != nil {
			return fmt.Errorf("%d pods, up: %w", n, err)
		}
	}
	return nil
}

// apart measures an API server in a separate process, with n stored pods.
func (b *bench) apart(ctx context.Context, n int) (err error) {
	s, err := newServers(ctx, b.binary)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	encoded, err := s.fill(ctx, n)
	if err != nil {
		return err
	}
	m := measure{bench: b, servers: s, pods: n, encoded: encoded}
	return m.all(ctx)
}
