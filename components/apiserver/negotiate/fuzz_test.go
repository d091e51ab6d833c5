package negotiate

import (
	"net/http/httptest"
	"testing"
)

// FuzzHeaders negotiates with arbitrary headers. The result must be a format that the endpoint
// supports.
func FuzzHeaders(f *testing.F) {
	f.Add("application/json;as=Table;v=v1;g=meta.k8s.io,application/json;q=0.5,*/*", "application/json; charset=utf-8", "kubectl/v1.37")
	f.Add("application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1;stream=watch", "application/apply-patch+yaml", "Mozilla/5.0")
	f.Add("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer", "application/vnd.kubernetes.protobuf", "curl/8")
	f.Add("*;q=, ;,text/*;=;q=2", "/;a", "")
	f.Fuzz(func(t *testing.T, accept, content, agent string) {
		req := httptest.NewRequest("PATCH", "/api/v1/pods?pretty=1", nil)
		req.Header.Set("Accept", accept)
		req.Header.Set("Content-Type", content)
		req.Header.Set("User-Agent", agent)
		for _, protobuf := range []bool{false, true} {
			for _, endpoint := range []Endpoint{{}, {Metadata: true}, {Watch: true}, {Aggregated: true}, {Routed: true}} {
				endpoint.Protobuf = protobuf
				format, err := (&Negotiator{}).Response(req, endpoint)
				switch {
				case err != nil:
				case format.Media == Protobuf && !protobuf && format.As != Metadata && format.As != MetadataList:
					t.Errorf("Accept %q: protobuf is not supported", accept)
				case format.As == Aggregated && !endpoint.Aggregated, (format.As == Metadata || format.As == MetadataList || format.As == Table) && !endpoint.Metadata:
					t.Errorf("Accept %q: unsupported format %+v", accept, format)
				case endpoint.Watch && format.Media == YAML:
					t.Errorf("Accept %q: watch in YAML", accept)
				}
			}
			if media, err := Body(req, protobuf); err == nil && media == Protobuf && !protobuf {
				t.Errorf("Content-Type %q: protobuf is not supported", content)
			}
		}
		_, _ = Patch(req, true, []string{"application/json-patch+json", "application/apply-patch+yaml"})
		Named(accept, "application/json", "text/plain")
	})
}
