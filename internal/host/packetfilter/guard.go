package packetfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/internal/base/backoff"
	"hyperkube/internal/host/nftnl"
)

// Guard detects that another program may have removed rules of one user of this package: for
// example, reloading a firewall flushes all tables. For nf_tables, which iptables-nft also uses, the kernel reports each change
// and the process that made it. The legacy iptables backend does not report changes; then Guard
// asks its user to check the rules periodically, as upstream's kube-proxy does. The methods of
// Guard are safe for concurrent use.
type Guard struct {
	mode   Mode
	period time.Duration
	log    *slog.Logger
	// chains contains chain names, or prefixes with a trailing "*".
	chains []string
	ready  chan struct{}
	socket io.ReadCloser // set between Listen and Run

	mu sync.Mutex // guards the fields below
	// writers are the IDs of the last processes, or for nftables threads, that wrote rules for the user.
	writers []int
}

// newGuard returns a guard of chains of a mode, where a trailing "*" matches all chains with that prefix, and
// of the jumps to them in built-in chains. period is the interval of checks if the kernel does not
// report changes; zero means 30 s. If log is nil, slog.Default() is used.
func newGuard(mode Mode, period time.Duration, log *slog.Logger, chains ...string) *Guard {
	if period <= 0 {
		period = 30 * time.Second
	}
	if log == nil {
		log = slog.Default()
	}
	return &Guard{mode: mode, period: period, log: log, chains: chains, ready: make(chan struct{})}
}

// Ready returns a channel that is closed when Run listens for changes or has found that it cannot.
func (g *Guard) Ready() <-chan struct{} { return g.ready }

// start starts cmd, a program that writes rules for the guard's user, and records its PID, so that
// the guard ignores the changes that it makes. A nil guard only starts the command.
func (g *Guard) start(cmd *exec.Cmd) error {
	if g == nil {
		return cmd.Start()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	g.keepWriter(cmd.Process.Pid)
	return nil
}

// addWriter records a thread that writes rules for the guard's user, so that the guard ignores the changes that it makes.
// A nil guard ignores it.
func (g *Guard) addWriter(tid int) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(g.writers, tid) {
		g.keepWriter(tid)
	}
}

// keepWriter adds the ID of a process or thread to the last ones. The caller must hold g.mu.
func (g *Guard) keepWriter(id int) {
	if g.writers = append(g.writers, id); len(g.writers) > 32 {
		g.writers = slices.Delete(g.writers, 0, 16)
	}
}

func (g *Guard) isOwn(pid int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Contains(g.writers, pid)
}

// Listen starts to receive the kernel's reports of rule changes in the network namespace of the
// calling thread. Call it before Run if Run is called in another network namespace; otherwise Run
// calls it.
func (g *Guard) Listen() error {
	socket, err := nftnl.Listen()
	if err == nil {
		g.socket = socket
	}
	return err
}

// Run sends to suspect, a channel with a buffer of one, whenever rules may have been removed, until
// ctx is done. The receiver must then check its rules. Call Run once.
func (g *Guard) Run(ctx context.Context, suspect chan<- struct{}) {
	notify := func() {
		select {
		case suspect <- struct{}{}:
		default:
		}
	}
	received := make(chan struct{})
	var err error
	if g.socket == nil {
		err = g.Listen()
	}
	if socket := g.socket; err != nil {
		g.log.Warn("kernel does not report changes of packet filter rules; rules that another program removes are restored only after the next check, checking after each interval", "interval", g.period, "err", err)
	} else {
		var reading sync.WaitGroup
		defer reading.Wait()
		defer socket.Close()
		reading.Go(func() { g.follow(ctx, socket, received, notify) })
	}
	close(g.ready)
	ticker := time.NewTicker(g.period)
	defer ticker.Stop()
	tick := ticker.C
	for {
		select {
		case <-ctx.Done():
			return
		case <-received:
			// The kernel reports changes made here, so it also reports those of other programs.
			tick, received = nil, nil
		case <-tick:
			notify()
		}
	}
}

// minReadDelay is the delay after a failed read. It doubles with each failure, up to the period of the
// guard.
const minReadDelay = 100 * time.Millisecond

// follow reads the kernel's reports from socket until the socket is closed or ctx is done. It
// closes received at the first message. It calls notify when another program has removed something
// that the guard watches. A failed read means that changes may have been missed, so follow calls
// notify and reads again after a delay. If the socket never recovers, this has the effect of
// periodic checks.
func (g *Guard) follow(ctx context.Context, socket io.Reader, received chan<- struct{}, notify func()) {
	buffer := make([]byte, 64<<10)
	removed, first := false, true
	retry := backoff.Backoff{First: min(minReadDelay, g.period), Max: g.period}
	for {
		n, err := socket.Read(buffer)
		if errors.Is(err, os.ErrClosed) || ctx.Err() != nil {
			return
		}
		if err != nil {
			removed = false
			notify()
			if errors.Is(err, unix.ENOBUFS) {
				continue // the receive buffer overflowed, and the next read succeeds
			}
			if !retry.Started() {
				g.log.Warn("reading changes of packet filter rules from the kernel failed; rules that another program removes are restored with a delay, retrying with back-off and checking all rules at each retry", "err", err)
			}
			if !retry.Pause(ctx) {
				return
			}
			continue
		}
		retry.Reset()
		eachRuleChange(buffer[:n], func(c ruleChange) {
			if first {
				close(received)
				first = false
			}
			if !c.end {
				removed = removed || g.affects(c)
				return
			}
			if removed && !g.isOwn(c.pid) {
				notify()
			}
			removed = false
		})
	}
}

// ruleChange is a message of nf_tables about a change of rules: an object was added or removed or,
// if end is set, the transaction is complete and was made by the process pid.
type ruleChange struct {
	kind   int // unix.NFT_MSG_…
	family byte
	table  string
	// chain is the name of the chain, or of the map whose elements were removed.
	chain string
	end   bool
	pid   int
}

// affects reports whether c may have removed a chain or rule that the guard watches.
func (g *Guard) affects(c ruleChange) bool {
	if c.family != unix.NFPROTO_IPV4 && c.family != unix.NFPROTO_IPV6 {
		return false
	}
	tables := []string{string(Filter), string(NAT), string(Mangle)}
	if g.mode == NFTables {
		tables = []string{nftTable}
	}
	if !slices.Contains(tables, c.table) {
		return false
	}
	name := c.chain
	switch c.kind {
	case unix.NFT_MSG_DELTABLE:
		return true
	case unix.NFT_MSG_DELSETELEM: // c.chain is the name of a map
		if set, _ := chainOfNFT(name); g.mode == NFTables && set.Table == Sets {
			return g.watches(name)
		}
		if at := strings.LastIndexByte(name, '-'); at > 0 && g.mode == NFTables {
			return g.watches(name[:at])
		}
	case unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE:
		return g.watches(name)
	}
	return false
}

// watches reports whether the guard watches the chain with a name of the kernel.
func (g *Guard) watches(name string) bool {
	if g.mode == NFTables {
		c, _ := chainOfNFT(name)
		name = c.Name
	}
	return builtIn(name) || slices.ContainsFunc(g.chains, func(watched string) bool {
		prefix, all := strings.CutSuffix(watched, "*")
		return watched == name || all && strings.HasPrefix(name, prefix)
	})
}

// eachRuleChange calls visit for each nf_tables message in data. It stops at malformed data.
func eachRuleChange(data []byte, visit func(ruleChange)) {
	nftnl.EachMessage(data, func(m nftnl.Message) {
		if !m.IsChange() {
			return
		}
		c := ruleChange{kind: m.Change(), family: m.Family}
		c.end = c.kind == unix.NFT_MSG_NEWGEN
		for attribute, value := range nftnl.Attributes(m.Data) {
			switch {
			case c.end && attribute == unix.NFTA_GEN_PROC_PID && len(value) == 4:
				c.pid = int(binary.BigEndian.Uint32(value))
			case c.end:
			case attribute == unix.NFTA_RULE_TABLE: // same value as for chains, sets and tables
				c.table = cString(value)
			case c.kind == unix.NFT_MSG_DELRULE && attribute == unix.NFTA_RULE_CHAIN,
				c.kind == unix.NFT_MSG_DELSETELEM && attribute == unix.NFTA_SET_ELEM_LIST_SET,
				c.kind == unix.NFT_MSG_DELCHAIN && attribute == unix.NFTA_CHAIN_NAME:
				c.chain = cString(value)
			}
		}
		visit(c)
	})
}
