package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Guard tells when others may have removed rules: reloading a firewall flushes
// all tables. The kernel tells of each change of nf_tables, and who made it; where
// iptables is the older one, which tells nothing, the rules are to be looked at
// every so often, as by upstream's proxy. Its methods are safe for several
// goroutines.
type Guard struct {
	period time.Duration
	log    *slog.Logger
	// chains are names, or what names begin with and a "*".
	chains []string
	ready  chan struct{}
	socket *os.File // from Listen until Run

	mu sync.Mutex // guards what follows
	// writers are the processes that wrote for the owner last.
	writers []int
}

// NewGuard returns a guard of chains, of which a "*" at the end stands for all that
// begin so, and of what leads there from the kernel's own. It suspects once a
// period, zero is 30 s, where the kernel does not tell. Without log it uses
// slog's default.
func NewGuard(period time.Duration, log *slog.Logger, chains ...string) *Guard {
	if period <= 0 {
		period = 30 * time.Second
	}
	if log == nil {
		log = slog.Default()
	}
	return &Guard{period: period, log: log, chains: chains, ready: make(chan struct{})}
}

// Ready is closed when Run listens, or has found that it cannot.
func (g *Guard) Ready() <-chan struct{} { return g.ready }

// Start starts a process that writes for the guard's owner: whatever the kernel
// tells of what it writes is told of a process that is known. A nil guard takes no
// note.
func (g *Guard) Start(cmd *exec.Cmd) error {
	if g == nil {
		return cmd.Start()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	if g.writers = append(g.writers, cmd.Process.Pid); len(g.writers) > 32 {
		g.writers = slices.Delete(g.writers, 0, 16)
	}
	return nil
}

func (g *Guard) isOwn(pid int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Contains(g.writers, pid)
}

// Listen begins to listen in the network namespace of the caller's thread. Without
// it, Run does.
func (g *Guard) Listen() (err error) {
	g.socket, err = listenToRules()
	return err
}

// Run sends to suspect, which has room for one, whenever rules may be gone,
// until ctx ends. It is called once.
func (g *Guard) Run(ctx context.Context, suspect chan<- struct{}) {
	tell := func() {
		select {
		case suspect <- struct{}{}:
		default:
		}
	}
	told := make(chan struct{})
	var err error
	if g.socket == nil {
		err = g.Listen()
	}
	if socket := g.socket; err != nil {
		g.log.Warn("the kernel does not tell of changes of rules: they are looked at now and then", "err", err)
	} else {
		var reading sync.WaitGroup
		defer reading.Wait()
		defer socket.Close()
		reading.Go(func() { g.follow(socket, told, tell) })
	}
	close(g.ready)
	ticker := time.NewTicker(g.period)
	defer ticker.Stop()
	tick := ticker.C
	for {
		select {
		case <-ctx.Done():
			return
		case <-told:
			// What is written is told of, so will be what others write.
			tick, told = nil, nil
		case <-tick:
			tell()
		}
	}
}

// follow reads what the kernel tells until the socket is closed. It closes told at
// the first message.
func (g *Guard) follow(socket *os.File, told chan<- struct{}, tell func()) {
	buffer := make([]byte, 64<<10)
	removed, first := false, true
	for {
		n, err := socket.Read(buffer)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			// More than there was room for, so it is not known what.
			tell()
			continue
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			g.log.Warn("the kernel tells no more of changes of rules", "err", err)
			return
		}
		eachRuleChange(buffer[:n], func(c ruleChange) {
			if first {
				close(told)
				first = false
			}
			if !c.end {
				removed = removed || g.concerns(c)
				return
			}
			if removed && !g.isOwn(c.pid) {
				tell()
			}
			removed = false
		})
	}
}

func listenToRules() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	// Rules by the thousand are written at one instant.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<20)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)}); err != nil {
		return nil, errors.Join(fmt.Errorf("listening to changes of rules: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// ruleChange is one message of nf_tables: something was added or removed, or, at
// the end, all of that came from the process pid.
type ruleChange struct {
	kind         int // unix.NFT_MSG_…
	family       byte
	table, chain string
	end          bool
	pid          int
}

// concerns tells whether something that the owner may have made is gone.
func (g *Guard) concerns(c ruleChange) bool {
	if c.family != unix.NFPROTO_IPV4 && c.family != unix.NFPROTO_IPV6 || !slices.Contains([]string{"filter", "nat", "mangle"}, c.table) {
		return false
	}
	switch c.kind {
	case unix.NFT_MSG_DELTABLE:
		return true
	case unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE:
		return slices.Contains([]string{"INPUT", "FORWARD", "OUTPUT", "PREROUTING", "POSTROUTING"}, c.chain) ||
			slices.ContainsFunc(g.chains, func(name string) bool {
				prefix, all := strings.CutSuffix(name, "*")
				return name == c.chain || all && strings.HasPrefix(c.chain, prefix)
			})
	}
	return false
}

// eachRuleChange calls visit for each message of nf_tables in data, as far as it
// can be read.
func eachRuleChange(data []byte, visit func(ruleChange)) {
	const header = unix.SizeofNlMsghdr + 4 // struct nfgenmsg
	for len(data) >= header {
		length := int(binary.NativeEndian.Uint32(data))
		if length < header || length > len(data) {
			return
		}
		kind := int(binary.NativeEndian.Uint16(data[4:]))
		if kind>>8 == unix.NFNL_SUBSYS_NFTABLES {
			c := ruleChange{kind: kind & 0xff, family: data[unix.SizeofNlMsghdr]}
			c.end = c.kind == unix.NFT_MSG_NEWGEN
			eachAttribute(data[header:length], func(attribute int, value []byte) {
				text := strings.TrimRight(string(value), "\x00")
				switch {
				case c.end && attribute == unix.NFTA_GEN_PROC_PID && len(value) == 4:
					c.pid = int(binary.BigEndian.Uint32(value))
				case c.end:
				case attribute == unix.NFTA_RULE_TABLE: // so of chains and tables
					c.table = text
				case c.kind == unix.NFT_MSG_DELRULE && attribute == unix.NFTA_RULE_CHAIN,
					c.kind == unix.NFT_MSG_DELCHAIN && attribute == unix.NFTA_CHAIN_NAME:
					c.chain = text
				}
			})
			visit(c)
		}
		data = data[min(len(data), align4(length)):]
	}
}

func eachAttribute(data []byte, visit func(attribute int, value []byte)) {
	for len(data) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofNlAttr || length > len(data) {
			return
		}
		visit(int(binary.NativeEndian.Uint16(data[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)), data[unix.SizeofNlAttr:length])
		data = data[min(len(data), align4(length)):]
	}
}

func align4(n int) int { return (n + 3) &^ 3 }
