// Command scale measures how memory and time of the API server grow with the
// number of pods in the store, and prints what docs/performance.md records. It
// starts an etcd and an API server of its own on free ports; with -up also a
// whole cluster in the usual places, for which it needs root.
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
	sizes := flag.String("pods", "10000,30000,100000", "Numbers of pods to measure with.")
	created := flag.Int("created", 20000, "How many pods to create one by one, for the memory of a server in use; 0 is none.")
	flag.StringVar(&b.binary, "binary", "bin/hyperkube", "The program to measure.")
	flag.BoolVar(&b.up, "up", false, "Measure `hyperkube up` as well; a cluster that is there is taken away.")
	flag.StringVar(&b.root, "root", "", "Where that cluster is; empty is the usual places.")
	flag.IntVar(&b.watchers, "watchers", 1000, "Watchers at the same time.")
	flag.BoolVar(&b.profile, "profile", false, "Leave heap profiles in the working directory.")
	flag.StringVar(&b.only, "only", "", "Parts to measure: start, list, select, informers, watch, slow, or up alone; empty is all.")
	flag.Parse()
	err := b.run(ctx, *created, *sizes)
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

type bench struct {
	binary, root string
	up, profile  bool
	watchers     int
	only         string
}

// wants tells whether a part is to be measured.
func (b *bench) wants(part string) bool {
	return b.only == "" || strings.Contains(","+b.only+",", ","+part+",")
}

func (b *bench) run(ctx context.Context, created int, sizes string) error {
	path, err := filepath.Abs(b.binary)
	if err != nil {
		return err
	}
	b.binary = path
	apart := b.only != "up"
	if created > 0 {
		if err := b.created(ctx, created); err != nil {
			return fmt.Errorf("%d pods created: %w", created, err)
		}
	}
	for text := range strings.FieldsFuncSeq(sizes, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("-pods: %w", err)
		}
		if apart {
			if err := b.apart(ctx, n); err != nil {
				return fmt.Errorf("%d pods, API server apart: %w", n, err)
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

// apart measures an API server that is a process of its own.
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
