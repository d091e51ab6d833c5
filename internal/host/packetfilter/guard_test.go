package packetfilter

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// FuzzRuleChanges checks that arbitrary messages do not cause a panic.
func FuzzRuleChanges(f *testing.F) {
	f.Add([]byte{28, 0, 0, 0, 5, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 8, 0, 1, 0, 'n', 'a', 't', 0})
	f.Fuzz(func(_ *testing.T, data []byte) {
		g := newGuard(IPTables, 0, nil, "KUBE-*", "HK-FORWARD")
		eachRuleChange(data, func(c ruleChange) { g.affects(c) })
	})
}

func TestAffects(t *testing.T) {
	const delTable, delChain, delRule = unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE
	g := newGuard(IPTables, 0, nil, "HK-NP-*", "HK-FORWARD")
	for _, c := range []struct {
		change ruleChange
		want   bool
	}{
		{ruleChange{kind: delTable, family: unix.NFPROTO_IPV4, table: "nat"}, true},
		{ruleChange{kind: delTable, family: unix.NFPROTO_IPV4, table: "mine"}, false},
		{ruleChange{kind: delChain, family: unix.NFPROTO_IPV6, table: "mangle", chain: "HK-NP-X"}, true},
		{ruleChange{kind: delRule, family: unix.NFPROTO_IPV4, table: "filter", chain: "HK-FORWARD"}, true},
		{ruleChange{kind: delRule, family: unix.NFPROTO_IPV4, table: "filter", chain: "HK-FORWARDS"}, false},
		{ruleChange{kind: delRule, family: unix.NFPROTO_IPV4, table: "filter", chain: "FORWARD"}, true},
		{ruleChange{kind: delRule, family: unix.NFPROTO_IPV4, table: "nat", chain: "KUBE-SERVICES"}, false},
	} {
		if got := g.affects(c.change); got != c.want {
			t.Errorf("%+v: %v", c.change, got)
		}
	}
}

// brokenSocket returns the results of reads, and then waits until ctx is done.
type brokenSocket struct {
	ctx   context.Context
	reads []any // an error or a message
}

func (s *brokenSocket) Read(buffer []byte) (int, error) {
	if len(s.reads) == 0 {
		<-s.ctx.Done()
		return 0, os.ErrClosed
	}
	next := s.reads[0]
	s.reads = s.reads[1:]
	if err, failed := next.(error); failed {
		return 0, err
	}
	return copy(buffer, next.([]byte)), nil
}

func (s *brokenSocket) Close() error { return nil }

func roundUp(n int) int { return (n + 3) &^ 3 }

// message returns an nf_tables message with one attribute.
func message(kind int, attribute uint16, value []byte) []byte {
	length := unix.SizeofNlAttr + len(value)
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+4+roundUp(length)))
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.NFNL_SUBSYS_NFTABLES<<8|kind))
	b = append(b, make([]byte, 10)...)
	b = append(b, unix.NFPROTO_IPV4, 0, 0, 0)
	b = binary.NativeEndian.AppendUint16(b, uint16(length))
	b = binary.NativeEndian.AppendUint16(b, attribute)
	return append(append(b, value...), make([]byte, roundUp(length)-length)...)
}

// TestReadErrors checks that the guard asks for a check of the rules after a failed read, and notices
// changes afterwards.
func TestReadErrors(t *testing.T) {
	removal := slices.Concat(
		message(unix.NFT_MSG_DELTABLE, unix.NFTA_TABLE_NAME, []byte("nat\x00")),
		message(unix.NFT_MSG_NEWGEN, unix.NFTA_GEN_PROC_PID, []byte{0, 0, 0, 1}))
	for name, c := range map[string]struct {
		reads []any
		want  int
	}{
		"removal":                  {[]any{removal}, 1},
		"overflow":                 {[]any{&os.PathError{Op: "read", Path: "netlink", Err: unix.ENOBUFS}}, 1},
		"removal after overflow":   {[]any{unix.ENOBUFS, removal}, 2},
		"other error":              {[]any{removal, unix.ENOMEM}, 2},
		"removal after errors":     {[]any{unix.ENOMEM, unix.EIO, io.ErrUnexpectedEOF, removal}, 4},
		"removal in lost messages": {[]any{removal[:24+4], unix.ENOBUFS, removal[24+4:]}, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			g := newGuard(IPTables, time.Hour, slog.New(slog.DiscardHandler))
			notified := 0
			done := make(chan struct{})
			go func() {
				defer close(done)
				g.follow(ctx, &brokenSocket{ctx: ctx, reads: c.reads}, make(chan struct{}), func() { notified++ })
			}()
			time.Sleep(time.Minute) // the delays after errors, of the test's clock
			cancel()
			<-done
			if notified != c.want {
				t.Errorf("%s: notified %d times, want %d", name, notified, c.want)
			}
		})
	}
}

// TestBrokenSocket checks that the guard checks the rules periodically if its socket does not recover,
// and stops with its context.
func TestBrokenSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		g := newGuard(IPTables, 30*time.Second, slog.New(slog.DiscardHandler))
		var reads []any
		for range 1000 {
			reads = append(reads, unix.ENOMEM)
		}
		g.socket = &brokenSocket{ctx: ctx, reads: reads}
		suspect := make(chan struct{}, 1)
		checks := 0
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			g.Run(ctx, suspect)
		}()
		for {
			select {
			case <-suspect:
				checks++
				continue
			case <-stopped:
			}
			break
		}
		// Every 30 s by the timer and by the failed reads, and more often at first.
		if checks < 20 || checks > 60 {
			t.Errorf("%d checks in 10 minutes", checks)
		}
	})
}
