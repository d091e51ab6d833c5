package rules

import (
	"maps"
	"slices"

	"hyperkube/internal/host/packetfilter"
)

// Translator converts the ports of Services to rules. It is a pure data structure: it stores the ports, so that its caller
// passes only those of changed Services. It is not safe for concurrent use.
type Translator interface {
	// Replace replaces the ports before of a Service by after. Each of them may be empty. Ports are identified by their
	// pointers, and must not be modified.
	Replace(before, after []*Port)
	// Build returns the rules of all ports. The result contains what has changed since the last call, so the caller passes it
	// to Sync of a packetfilter.Writer before the next one.
	Build(cfg Config) packetfilter.Ruleset
}

// NewTranslator returns the Translator for a mode.
func NewTranslator(mode packetfilter.Mode) Translator {
	if mode == packetfilter.NFTables {
		return newSetTranslator()
	}
	return &chainTranslator{services: map[string][]*Port{}}
}

// chainTranslator is the Translator for iptables.
type chainTranslator struct {
	// services contains the ports by "namespace/name" of the Service.
	services map[string][]*Port
	builder  Builder
}

func (t *chainTranslator) Replace(before, after []*Port) {
	for _, p := range before {
		delete(t.services, p.service())
	}
	for _, p := range after {
		t.services[p.service()] = append(t.services[p.service()], p)
	}
}

// Build orders the ports by Service, so that equal ports yield equal rules.
func (t *chainTranslator) Build(cfg Config) packetfilter.Ruleset {
	var all []*Port
	for _, key := range slices.Sorted(maps.Keys(t.services)) {
		all = append(all, t.services[key]...)
	}
	return t.builder.Build(cfg, all)
}

// service returns "namespace/name" of the Service of p.
func (p *Port) service() string { return p.Namespace + "/" + p.Service }
