package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/cpuset"

	"hyperkube/internal/hostchange"
)

// What the kernel is told of the connections that it remembers unless somebody
// says otherwise: kube-proxy's.
// https://kubernetes.io/docs/reference/config-api/kube-proxy-config.v1alpha1/#kubeproxy-config-k8s-io-v1alpha1-KubeProxyConntrackConfiguration
const (
	defaultMaxPerCore  = 32 << 10
	defaultMin         = 128 << 10
	defaultEstablished = 24 * time.Hour
	defaultCloseWait   = time.Hour
)

// mostConnections bounds what many cores add up to: each costs memory.
const mostConnections = 1 << 20

// Where the kernel keeps its bounds.
const (
	netfilterDir     = "net/netfilter/"
	connections      = "nf_conntrack_max"
	connectionsTable = "nf_conntrack/parameters/hashsize"
)

// perSlot connections share a slot of the kernel's table: with more it is slow.
const perSlot = 4

// completeConntrack returns c with the defaults of what it leaves open.
func completeConntrack(c kubeproxyv1alpha1.KubeProxyConntrackConfiguration) kubeproxyv1alpha1.KubeProxyConntrackConfiguration {
	number := func(p **int32, def int32) {
		if *p == nil {
			*p = &def
		}
	}
	wait := func(p **metav1.Duration, def time.Duration) {
		if *p == nil {
			*p = &metav1.Duration{Duration: def}
		}
	}
	number(&c.MaxPerCore, defaultMaxPerCore)
	number(&c.Min, defaultMin)
	wait(&c.TCPEstablishedTimeout, defaultEstablished)
	wait(&c.TCPCloseWaitTimeout, defaultCloseWait)
	return c
}

// checkConntrack refuses what upstream refuses.
func checkConntrack(c *kubeproxyv1alpha1.KubeProxyConntrackConfiguration) error {
	const least = "must be greater than or equal to 0"
	at := field.NewPath("KubeProxyConfiguration", "KubeProxyLinuxConfiguration", "KubeProxyConntrackConfiguration")
	var errs field.ErrorList
	for _, one := range []struct {
		name  string
		value *int32
	}{{"MaxPerCore", c.MaxPerCore}, {"Min", c.Min}} {
		if one.value != nil && *one.value < 0 {
			errs = append(errs, field.Invalid(at.Child(one.name), *one.value, least))
		}
	}
	for _, one := range []struct {
		name  string
		value *metav1.Duration
	}{
		{"TCPEstablishedTimeout", c.TCPEstablishedTimeout}, {"TCPCloseWaitTimeout", c.TCPCloseWaitTimeout},
		{"UDPTimeout", &c.UDPTimeout}, {"UDPStreamTimeout", &c.UDPStreamTimeout},
	} {
		if one.value != nil && one.value.Duration < 0 {
			errs = append(errs, field.Invalid(at.Child(one.name), one.value.Duration.String(), least))
		}
	}
	return errs.ToAggregate()
}

// bound is one that the kernel is told.
type bound struct {
	change hostchange.Change // of which kind, and its name
	value  int
	// table: the room for connections, which is said with their number. It may be
	// greater.
	table bool
	// asked: somebody named it, so that it is an error if it cannot be had.
	asked bool
}

// bounds are what asked says, completed, on a machine of so many CPUs. Zero leaves
// the kernel's own.
func bounds(asked kubeproxyv1alpha1.KubeProxyConntrackConfiguration, cpus int) []bound {
	c := completeConntrack(asked)
	var out []bound
	add := func(name string, value int, asked bool) {
		if value > 0 {
			out = append(out, bound{change: hostchange.Change{Kind: hostchange.Sysctl, Name: netfilterDir + name}, value: value, asked: asked})
		}
	}
	if per := int(*c.MaxPerCore); per > 0 {
		most := per * cpus
		if most > mostConnections {
			most = mostConnections
		} else {
			most = max(most, int(*c.Min))
		}
		add(connections, most, asked.MaxPerCore != nil)
		out = append(out, bound{
			change: hostchange.Change{Kind: hostchange.Module, Name: connectionsTable}, value: most / perSlot, table: true, asked: asked.MaxPerCore != nil,
		})
	}
	seconds := func(d *metav1.Duration) int { return int(d.Duration / time.Second) }
	add("nf_conntrack_tcp_timeout_established", seconds(c.TCPEstablishedTimeout), asked.TCPEstablishedTimeout != nil)
	add("nf_conntrack_tcp_timeout_close_wait", seconds(c.TCPCloseWaitTimeout), asked.TCPCloseWaitTimeout != nil)
	add("nf_conntrack_udp_timeout", seconds(&c.UDPTimeout), true)
	add("nf_conntrack_udp_timeout_stream", seconds(&c.UDPStreamTimeout), true)
	if c.TCPBeLiberal {
		add("nf_conntrack_tcp_be_liberal", 1, true)
	}
	return out
}

// cpus counts those of the machine, not those that this process may use: the
// kernel's bound is about all.
func cpus() int {
	if n, err := cpuset.NumCPU(); err == nil && n > 0 {
		return n
	}
	return goruntime.NumCPU()
}

// following tells whether the kernel follows connections: its module is loaded
// when the first rule asks for it.
func following() bool {
	_, err := os.Stat("/proc/sys/" + netfilterDir + connections)
	return err == nil
}

// setBounds tells the kernel. What nobody asked for and cannot be had stays as it
// is: /proc/sys is read-only in many containers, and the number of connections is
// the first network namespace's to say for the whole machine.
func setBounds(all []bound, journal *hostchange.Journal, log *slog.Logger) error {
	var do []bound
	var changes []hostchange.Change
	left := false // the bound before this one was
	for _, b := range all {
		if b.table && left {
			continue
		}
		path := b.change.Path()
		data, err := os.ReadFile(path)
		if err == nil {
			b.change.Before = strings.TrimSpace(string(data))
			now, parse := strconv.Atoi(b.change.Before)
			if left = false; parse == nil && (now == b.value || b.table && now > b.value) {
				continue
			}
			err = unix.Access(path, unix.W_OK)
		}
		switch left = err != nil; {
		case err == nil:
			do, changes = append(do, b), append(changes, b.change)
		case b.asked:
			return fmt.Errorf("setting the kernel parameter %s: %w", b.change.Name, err)
		case errors.Is(err, unix.EACCES):
			log.Debug("a kernel parameter is not this network namespace's to set", "name", b.change.Name)
		default:
			log.Warn("a kernel parameter cannot be set and stays as it is", "name", b.change.Name, "wanted", b.value, "err", err)
		}
	}
	if err := journal.Record(changes...); err != nil {
		return err
	}
	for _, b := range do {
		if err := os.WriteFile(b.change.Path(), []byte(strconv.Itoa(b.value)), 0o644); err != nil {
			return fmt.Errorf("setting the kernel parameter %s: %w", b.change.Name, err)
		}
	}
	return nil
}
