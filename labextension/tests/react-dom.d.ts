/** The part of react-dom that the tests use: its types are a package of their own, which nothing else here needs. */
declare module "react-dom/client" {
  export function createRoot(place: Element): { render: (content: unknown) => void };
}
