package controller

import (
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// supportedFeatures returns the features that the status of GatewayClasses lists, in the order that the API requires.
func supportedFeatures() []gatewayv1.SupportedFeature {
	names := []gatewayv1.FeatureName{
		"BackendTLSPolicy", "BackendTLSPolicySANValidation",
		"GRPCRoute", "GRPCRouteNamedRouteRule",
		"Gateway", "GatewayAddressEmpty", "GatewayBackendClientCertificate", "GatewayFrontendClientCertificateValidation", "GatewayFrontendClientCertificateValidationInsecureFallback",
		"GatewayHTTPListenerIsolation", "GatewayHTTPSListenerDetectMisdirectedRequests", "GatewayPort8080",
		"HTTPRoute", "HTTPRoute303RedirectStatusCode", "HTTPRoute307RedirectStatusCode", "HTTPRoute308RedirectStatusCode",
		"HTTPRouteBackendProtocolH2C", "HTTPRouteBackendProtocolWebSocket", "HTTPRouteBackendRequestHeaderModification",
		"HTTPRouteBackendTimeout", "HTTPRouteCORS", "HTTPRouteDestinationPortMatching", "HTTPRouteHostRewrite", "HTTPRouteMethodMatching",
		"HTTPRouteNamedRouteRule", "HTTPRouteParentRefPort", "HTTPRoutePathRedirect", "HTTPRoutePathRewrite", "HTTPRoutePortRedirect",
		"HTTPRouteQueryParamMatching", "HTTPRouteRequestMirror", "HTTPRouteRequestMultipleMirrors", "HTTPRouteRequestPercentageMirror",
		"HTTPRouteRequestTimeout", "HTTPRouteResponseHeaderModification", "HTTPRouteSchemeRedirect",
		"ListenerSet", "ReferenceGrant", "TCPRoute", "TLSRoute", "TLSRouteModeMixed", "TLSRouteModeTerminate", "UDPRoute",
	}
	slices.Sort(names)
	out := make([]gatewayv1.SupportedFeature, 0, len(names))
	for _, name := range names {
		out = append(out, gatewayv1.SupportedFeature{Name: name})
	}
	return out
}
