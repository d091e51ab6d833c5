// Package packetfilter owns the packet filter rules of hyperkube. Its users are the service proxy,
// the pod network with its host ports, network policies, routes to other nodes, and the network of
// additional nodes. They describe rules as values, without running programs: a [Ruleset] contains
// the chains of one user in one address family and the jumps to them from built-in chains.
//
// A [Writer] makes the kernel have the rules of a Ruleset. It compares a Ruleset with what it wrote
// last and passes the difference to a [Backend], which changes each table atomically. The first
// time, it reads the rules of the kernel to adopt those of an earlier process. It records chains
// and jumps in the journal of host changes before it creates them; [Undo] reverts them.
//
// There are two backends. That of iptables runs iptables-save and iptables-restore: two programs per address family and
// user at start, and one for each change, whatever the number of rules. Programs that change one
// rule each, as package go-iptables runs them, are used only to revert rules that an
// iptables-restore cannot remove. That of nftables uses netlink. It translates the same rules, and a user with
// thousands of objects can put them into a [Set], which rules look up with a [Program].
//
// Other programs can remove rules, for example by reloading a firewall. A [Guard] detects it.
package packetfilter

import (
	"context"
	"strings"
)

// Family is an address family, in the notation of the host change journal.
type Family string

// IPv4 and IPv6 are the address families, each of which has its own rules.
const (
	IPv4 Family = "4"
	IPv6 Family = "6"
)

// FamilyOf returns IPv6 if is6 is set, and otherwise IPv4.
func FamilyOf(is6 bool) Family {
	if is6 {
		return IPv6
	}
	return IPv4
}

// Table is the name of a table of the packet filter.
type Table string

// Filter, NAT and Mangle are the tables of the packet filter that hyperkube uses, in the order in which they are
// changed.
const (
	Filter Table = "filter"
	NAT    Table = "nat"
	Mangle Table = "mangle"
)

// tables returns all tables in the order in which they are changed.
func tables() []Table { return []Table{Filter, NAT, Mangle} }

// Chain identifies a chain. As a pattern, its name has a trailing "*" and stands for all chains of
// the table with that prefix.
type Chain struct {
	Table Table
	Name  string
}

// String returns "TABLE CHAIN", as in the host change journal.
func (c Chain) String() string { return string(c.Table) + " " + c.Name }

// compare orders chains by table and name.
func (c Chain) compare(o Chain) int { return strings.Compare(c.String(), o.String()) }

// isPattern reports whether c stands for several chains.
func (c Chain) isPattern() bool { return strings.HasSuffix(c.Name, "*") }

// matches reports whether c is pattern or is one of the chains that pattern stands for.
func (c Chain) matches(pattern Chain) bool {
	prefix, all := strings.CutSuffix(pattern.Name, "*")
	return c == pattern || all && c.Table == pattern.Table && strings.HasPrefix(c.Name, prefix)
}

// Chains maps chains to their rules, in order. A chain without rules exists and is empty.
type Chains map[Chain][]Rule

// Ruleset contains all rules that one part of hyperkube, such as the service proxy, has in one address family.
type Ruleset struct {
	// Chains contains the chains of the user.
	Chains Chains
	// Jumps are the rules in built-in chains that jump to the chains of the user, in the order of
	// the rules in each built-in chain.
	Jumps []Jump
	// Sets are the sets that the programs of rules look up. They do not change between calls of Sync. Only nftables has them.
	Sets []Set
	// Elements are the elements of Sets.
	Elements Elements
}

// Change describes how a Backend changes the rules of one part of hyperkube, such as the service proxy, in one
// address family.
type Change struct {
	// Create contains chains that are created without rules, unless State has them: the rules of an
	// existing chain are kept.
	Create []Chain
	// Replace contains chains that are created, or whose rules are replaced.
	Replace Chains
	// Remove contains chains that are removed. Only chains that are removed or replaced may jump to
	// them.
	Remove []Chain
	// Jumps are the rules in built-in chains that must exist at their Place. Those that do are kept.
	Jumps []Jump
	// State is what Read returned before the change. It may be nil if Create and Jumps are empty.
	State *State
	// Before contains the present rules of those chains in Replace and Remove that exist. It is nil if they are not
	// known.
	Before Chains
	// sets describes the change of sets.
	sets setChange
}

// Backend reads and changes the packet filter in the network namespace of the calling thread.
type Backend interface {
	// Read returns the state of a family.
	Read(ctx context.Context, family Family) (*State, error)
	// Apply makes a change, atomically in each table. It does not modify chains that the change does
	// not name. If it fails, the state of the kernel is unknown.
	Apply(ctx context.Context, family Family, change Change) error
}
