package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
)

// TestSpace checks that a member whose quota is exhausted by old revisions accepts writes again
// without an operator.
func TestSpace(t *testing.T) {
	ctx := t.Context()
	config := localConfig(t)
	config.DataDir = filepath.Join(t.TempDir(), "data")
	config.QuotaBackendBytes = 24 << 20
	cfg, err := config.embed(zapLogger(nil, zap.WarnLevel, nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	member, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close()
	campaign(ctx, member.Server)
	<-member.Server.ReadyNotify()
	client := v3client.New(member.Server)
	defer client.Close()
	s := &spaceManager{server: member.Server, log: slog.New(slog.DiscardHandler), minSize: 1 << 20}

	value := strings.Repeat("v", 1<<20)
	for i := 0; ; i++ {
		member.Server.KV().Commit() // the database file is written with a delay
		_, err := client.Put(ctx, fmt.Sprint("k", i%3), value)
		if errors.Is(err, rpctypes.ErrNoSpace) {
			break
		}
		if err != nil || i > 100 {
			t.Fatal(i, err)
		}
	}
	if err := s.check(ctx); err != nil {
		t.Fatal(err)
	}
	if s.alarmActive() {
		t.Fatal("the alarm was not disarmed")
	}
	for i := range 5 {
		if _, err := client.Put(ctx, fmt.Sprint("k", i%3), value); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := client.Get(ctx, "k1")
	if err != nil || resp.Count != 1 || string(resp.Kvs[0].Value) != value {
		t.Errorf("after that: %v", err)
	}

	// Live data exhausts the quota: the alarm stays active.
	for i := 0; !s.alarmActive() || s.check(ctx) == nil && !s.alarmActive(); i++ {
		member.Server.KV().Commit()
		if _, err := client.Put(ctx, fmt.Sprint("more", i), value); err != nil && !errors.Is(err, rpctypes.ErrNoSpace) || i > 100 {
			t.Fatal(i, err)
		}
	}
	if _, err := client.Put(ctx, "k1", value); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("when all is in use: %v", err)
	}
	// The database is not defragmented repeatedly without effect.
	var said strings.Builder
	s.log = slog.New(slog.NewTextHandler(&said, nil))
	for i := range 3 {
		if _, err := client.Delete(ctx, fmt.Sprint("nothing", i)); err != nil {
			t.Fatal(err)
		}
		if err := s.check(ctx); err != nil || !s.alarmActive() {
			t.Fatalf("when all is in use: %v, alarm %v", err, s.alarmActive())
		}
	}
	if n := strings.Count(said.String(), "database defragmented"); n > 1 {
		t.Errorf("defragmented %d times:\n%s", n, said.String())
	}
	// Deletions free space, at the latest after defragmentRetryInterval.
	for i := range 40 {
		if _, err := client.Delete(context.Background(), fmt.Sprint("more", i)); err != nil {
			t.Fatal(err)
		}
	}
	s.ineffectiveSince = time.Now().Add(-defragmentRetryInterval)
	if err := s.check(ctx); err != nil || s.alarmActive() {
		t.Errorf("after deletions: %v, alarm %v", err, s.alarmActive())
	}
}
