package serviceip

import (
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Errors for node ports that cannot be allocated to a Service, with upstream's texts.
var (
	errPortTaken = errors.New("provided port is already allocated")
	errNoPorts   = errors.New("range is full")
)

// ports is the set of node ports that are allocated to Services. Its stored form is upstream's
// bitmap: bit n of a big-endian number is the n-th port of the range.
type ports struct {
	within utilnet.PortRange
	bits   *big.Int
	// notes records the results of allocations for metrics.
	notes []portNote
}

// portNote is the result of one allocation of a node port, for metrics. scope is static if the client requested the
// port, and dynamic if the allocator chose it. err is nil if the port was allocated.
type portNote struct {
	scope string
	err   error
}

// newPorts returns an empty set for the ports of a range.
func newPorts(within utilnet.PortRange) *ports {
	return &ports{within: within, bits: new(big.Int)}
}

// parsePorts decodes the stored set of ports. It ignores ports outside of the range within, which are stored only if
// the range was changed. It returns an error if the stored range is invalid.
func parsePorts(stored *corev1.RangeAllocation, within utilnet.PortRange) (*ports, error) {
	p := newPorts(within)
	was := within
	if s := strings.TrimSpace(stored.Range); s != "" && s != within.String() {
		if err := was.Set(s); err != nil {
			return nil, fmt.Errorf("reading the range of node ports: %w", err)
		}
	}
	all := new(big.Int).SetBytes(stored.Data)
	for i := range min(was.Size, all.BitLen()) {
		if all.Bit(i) == 1 && within.Contains(was.Base+i) {
			p.set(was.Base+i, true)
		}
	}
	return p, nil
}

// store returns the set as the object that is stored in etcd.
func (p *ports) store() *corev1.RangeAllocation {
	return &corev1.RangeAllocation{Range: p.within.String(), Data: p.bits.Bytes()}
}

// set marks a port of the range as allocated or free.
func (p *ports) set(port int, used bool) {
	bit := uint(0)
	if used {
		bit = 1
	}
	p.bits.SetBit(p.bits, port-p.within.Base, bit)
}

// used reports whether a port is allocated. The port must be in the range.
func (p *ports) used(port int) bool { return p.bits.Bit(port-p.within.Base) == 1 }

// take allocates a port that a client requested. It returns an error if the port is allocated or
// not in the range.
func (p *ports) take(port int) error {
	err := p.mark(port)
	p.notes = append(p.notes, portNote{static, err})
	return err
}

// mark does the same as take, but does not record the result for metrics.
func (p *ports) mark(port int) error {
	if !p.within.Contains(port) {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", p.within.String())
	}
	if p.used(port) {
		return errPortTaken
	}
	p.set(port, true)
	return nil
}

// free releases a port. It ignores a port outside of the range.
func (p *ports) free(port int) {
	if p.within.Contains(port) {
		p.set(port, false)
	}
}

// choose allocates a random free port, from the upper part of the range if possible, so that the
// lower part remains for explicitly requested ports. It returns errNoPorts if all are allocated.
func (p *ports) choose() (int, error) {
	lower := 0
	if p.within.Size > 16 {
		lower = int(reservedSize(uint64(p.within.Size), 16, 128, 32))
	}
	for _, r := range [][2]int{{lower, p.within.Size}, {0, lower}} {
		n := r[1] - r[0]
		if n <= 0 {
			continue
		}
		start := rand.IntN(n)
		for i := range n {
			if at := r[0] + (start+i)%n; p.bits.Bit(at) == 0 {
				p.set(p.within.Base+at, true)
				p.notes = append(p.notes, portNote{scope: dynamic})
				return p.within.Base + at, nil
			}
		}
	}
	p.notes = append(p.notes, portNote{dynamic, errNoPorts})
	return 0, errNoPorts
}

// count returns the number of allocated ports, for metrics.
func (p *ports) count() int {
	n := 0
	for _, word := range p.bits.Bits() {
		n += bits.OnesCount(uint(word))
	}
	return n
}

// equal reports whether two sets have the same range and the same allocated ports.
func (p *ports) equal(o *ports) bool { return p.within == o.within && p.bits.Cmp(o.bits) == 0 }

// clone returns a copy of the set of allocated ports, without the notes for metrics.
func (p *ports) clone() *ports { return &ports{within: p.within, bits: new(big.Int).Set(p.bits)} }
