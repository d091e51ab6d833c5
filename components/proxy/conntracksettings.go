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

	"hyperkube/internal/host/hostjournal"
)

// defaultMaxPerCore and the other constants are the default conntrack settings, as in kube-proxy.
//
// https://kubernetes.io/docs/reference/config-api/kube-proxy-config.v1alpha1/#kubeproxy-config-k8s-io-v1alpha1-KubeProxyConntrackConfiguration
const (
	defaultMaxPerCore  = 32 << 10
	defaultMin         = 128 << 10
	defaultEstablished = 24 * time.Hour
	defaultCloseWait   = time.Hour
)

// maxDefaultConnections limits the number of connections on machines with many cores, because each
// conntrack entry costs memory.
const maxDefaultConnections = 1 << 20

// netfilterDir and the other constants are the paths of the kernel parameters for connection tracking below
// /proc/sys and /sys/module.
const (
	netfilterDir      = "net/netfilter/"
	conntrackMax      = "nf_conntrack_max"
	conntrackHashSize = "nf_conntrack/parameters/hashsize"
)

// connectionsPerBucket is the number of connections for each bucket of the conntrack hash table.
// With more, lookups are slow.
const connectionsPerBucket = 4

// completeConntrack returns c with defaults for unset fields.
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

// checkConntrack validates c as upstream does.
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

// conntrackParam is a kernel parameter of conntrack, and the value to set.
type conntrackParam struct {
	change hostjournal.Change // kind and name of the parameter
	value  int
	// hashTable is true for the size of the hash table, which comes after the connection limit in a list. It is
	// never decreased, and not set if the limit could not be set.
	hashTable bool
	// explicit is true if the user set the value explicitly, so that a failure is an error.
	explicit bool
}

// conntrackParams returns the parameters for settings, completed with defaults, on a machine
// with the given number of CPUs. A zero setting leaves the kernel's value unchanged.
func conntrackParams(settings kubeproxyv1alpha1.KubeProxyConntrackConfiguration, cpus int) []conntrackParam {
	c := completeConntrack(settings)
	var out []conntrackParam
	add := func(name string, value int, explicit bool) {
		if value > 0 {
			out = append(out, conntrackParam{change: hostjournal.Change{Kind: hostjournal.Sysctl, Name: netfilterDir + name}, value: value, explicit: explicit})
		}
	}
	if per := int(*c.MaxPerCore); per > 0 {
		most := per * cpus
		if most > maxDefaultConnections {
			most = maxDefaultConnections
		} else {
			most = max(most, int(*c.Min))
		}
		add(conntrackMax, most, settings.MaxPerCore != nil)
		out = append(out, conntrackParam{
			change: hostjournal.Change{Kind: hostjournal.Module, Name: conntrackHashSize}, value: most / connectionsPerBucket, hashTable: true, explicit: settings.MaxPerCore != nil,
		})
	}
	seconds := func(d *metav1.Duration) int { return int(d.Duration / time.Second) }
	add("nf_conntrack_tcp_timeout_established", seconds(c.TCPEstablishedTimeout), settings.TCPEstablishedTimeout != nil)
	add("nf_conntrack_tcp_timeout_close_wait", seconds(c.TCPCloseWaitTimeout), settings.TCPCloseWaitTimeout != nil)
	add("nf_conntrack_udp_timeout", seconds(&c.UDPTimeout), true)
	add("nf_conntrack_udp_timeout_stream", seconds(&c.UDPStreamTimeout), true)
	if c.TCPBeLiberal {
		add("nf_conntrack_tcp_be_liberal", 1, true)
	}
	return out
}

// cpus returns the number of CPUs of the machine, not of those this process may use, because the
// kernel's limit is global.
func cpus() int {
	if n, err := cpuset.NumCPU(); err == nil && n > 0 {
		return n
	}
	return goruntime.NumCPU()
}

// conntrackLoaded reports whether the conntrack module of the kernel is loaded, so that its
// parameters exist. The first iptables rule that uses conntrack loads it.
func conntrackLoaded() bool {
	_, err := os.Stat("/proc/sys/" + netfilterDir + conntrackMax)
	return err == nil
}

// setConntrackParams writes the kernel parameters that differ, and records the previous values in
// journal, so that a reset restores them. An explicit parameter that cannot be written is an error.
// Others are skipped: /proc/sys is read-only in many containers, and only the initial network
// namespace may set the number of connections.
func setConntrackParams(all []conntrackParam, journal *hostjournal.Journal, log *slog.Logger) error {
	var do []conntrackParam
	var changes []hostjournal.Change
	left := false // whether the previous parameter was skipped, which is the connection limit if b is the hash table
	for _, b := range all {
		if b.hashTable && left {
			continue
		}
		path := b.change.Path()
		data, err := os.ReadFile(path)
		if err == nil {
			b.change.Before = strings.TrimSpace(string(data))
			now, parse := strconv.Atoi(b.change.Before)
			if left = false; parse == nil && (now == b.value || b.hashTable && now > b.value) {
				continue
			}
			err = unix.Access(path, unix.W_OK)
		}
		switch left = err != nil; {
		case err == nil:
			do, changes = append(do, b), append(changes, b.change)
		case b.explicit:
			return fmt.Errorf("setting kernel parameter %s: %w", b.change.Name, err)
		case errors.Is(err, unix.EACCES):
			log.Debug("kernel parameter of conntrack cannot be set in this network namespace, its current value stays in effect", "sysctl", b.change.Name)
		default:
			log.Warn("setting kernel parameter of conntrack failed; its current value stays in effect, retrying at the next start of the proxy", "sysctl", b.change.Name, "desired", b.value, "err", err)
		}
	}
	if err := journal.Record(changes...); err != nil {
		return err
	}
	for _, b := range do {
		if err := os.WriteFile(b.change.Path(), []byte(strconv.Itoa(b.value)), 0o644); err != nil {
			return fmt.Errorf("setting kernel parameter %s: %w", b.change.Name, err)
		}
	}
	return nil
}
