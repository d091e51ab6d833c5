package cni

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The annotations by which a pod asks for bounds of its bandwidth.
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/network-plugins/#support-traffic-shaping
const (
	ingressAnnotation = "kubernetes.io/ingress-bandwidth"
	egressAnnotation  = "kubernetes.io/egress-bandwidth"
)

// Bandwidth bounds what a pod may receive and send, in bits a second; zero: not
// at all.
type Bandwidth struct{ Ingress, Egress uint64 }

// Bounds of what may be asked for.
var (
	leastBandwidth = resource.MustParse("1k")
	mostBandwidth  = resource.MustParse("1P")
)

// BandwidthOf reads a pod's annotations.
func BandwidthOf(annotations map[string]string) (Bandwidth, error) {
	var b Bandwidth
	for name, to := range map[string]*uint64{ingressAnnotation: &b.Ingress, egressAnnotation: &b.Egress} {
		text, ok := annotations[name]
		if !ok {
			continue
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return b, fmt.Errorf("annotation %s: %w", name, err)
		}
		if q.Cmp(leastBandwidth) < 0 {
			return b, fmt.Errorf("annotation %s: resource is unreasonably small (< 1kbit)", name)
		}
		if q.Cmp(mostBandwidth) > 0 {
			return b, fmt.Errorf("annotation %s: resource is unreasonably large (> 1Pbit)", name)
		}
		*to = uint64(q.Value())
	}
	return b, nil
}

// Capability is what plugins know it as; nil: there is none.
func (b Bandwidth) Capability() map[string]any {
	if b == (Bandwidth{}) {
		return nil
	}
	out := map[string]any{}
	if b.Ingress > 0 {
		out["ingressRate"], out["ingressBurst"] = b.Ingress, uint64(math.MaxUint32)
	}
	if b.Egress > 0 {
		out["egressRate"], out["egressBurst"] = b.Egress, uint64(math.MaxUint32)
	}
	return out
}
